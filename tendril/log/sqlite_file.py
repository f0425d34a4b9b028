"""SQLite files as all parts open them: write-ahead logging, and errors that say what to do.

With `synchronous=NORMAL` a killed process loses nothing; a power cut can lose the last moments.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tendril.log.protocol import LogUnavailable

BUSY_TIMEOUT_S = 10.0
PAGE_BYTES = 8_192
"""Of a new file. In SQLite's own 4,096 a record of over 1,000 bytes needs a page to itself."""


def connect(path: Path) -> sqlite3.Connection:
    """Open a SQLite file in autocommit mode with write-ahead logging.

    Raises `LogUnavailable` with the path and the cure where the folder is read-only or full, or
    the file is damaged.
    """
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what SQLite and the disk can say about `path` into `LogUnavailable`."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise unavailable(path, error) from error
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:
            raise  # a mistake of the caller
        raise LogUnavailable(
            f"{path}: expected an intact SQLite file, got: {error}. Restore it from a backup, or "
            "move it away together with its -wal and -shm files to start an empty one"
        ) from error


def unavailable(path: Path, error: Exception) -> LogUnavailable:
    """The error to raise when SQLite cannot use `path`, with what to do about it."""
    return LogUnavailable(
        f"{path}: {error}. Expected a writable file on a disk with free space; "
        f"make room or choose another folder with TENDRIL_WORKSPACE"
    )


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A write transaction: taken at once, committed on success, rolled back on any error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it already
            connection.execute("ROLLBACK")
        raise
