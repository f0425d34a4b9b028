"""The embedded event log: one SQLite file, durable, shared by the processes of one machine.

Write-ahead logging: readers never block the writer; writers queue for at most `BUSY_TIMEOUT_S`.
With `synchronous=NORMAL` a killed process loses nothing; a power cut can lose the last moments.
"""

import math
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tendril.log.protocol import LeaseLost, LogRecord, LogUnavailable, Offsets, TopicPartition
from tendril.records import Record, encode

BUSY_TIMEOUT_S = 10.0
PAGE_BYTES = 8_192
"""Of a new file. In SQLite's own 4,096 a record of over 1,000 bytes needs a page to itself."""
LEASE_S = 5.0
POLL_INTERVAL_S = 0.02
SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    topic TEXT NOT NULL, offset INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    appended_at REAL NOT NULL, PRIMARY KEY (topic, offset)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topics (topic TEXT PRIMARY KEY, next_offset INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS committed (
    consumer_group TEXT NOT NULL, topic TEXT NOT NULL, offset INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, topic));
CREATE TABLE IF NOT EXISTS leases (
    consumer_group TEXT NOT NULL, topic TEXT NOT NULL, owner TEXT NOT NULL, until REAL NOT NULL,
    PRIMARY KEY (consumer_group, topic));
"""


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


class SqliteLog:
    """See `EventLog`. Thread-safe; any number of processes may open the same file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection = connect(path)
        try:
            with explained(path):
                self._connection.executescript(SCHEMA)
        except LogUnavailable:
            self._connection.close()
            raise

    def append(self, records: Iterable[tuple[str, Record]]) -> None:
        rows = [(record.TOPIC, key, encode(record)) for key, record in records]
        with explained(self._path), self._lock, transaction(self._connection) as db:
            self._insert(db, rows)

    def _insert(self, db: sqlite3.Connection, rows: list[tuple[str, str, bytes]]) -> None:
        now = time.time()
        for topic in {topic for topic, _, _ in rows}:
            new = [(key, value) for row_topic, key, value in rows if row_topic == topic]
            found = db.execute("SELECT next_offset FROM topics WHERE topic=?", (topic,)).fetchone()
            start = found[0] if found else 0
            db.executemany(
                "INSERT INTO records VALUES (?,?,?,?,?)",
                [(topic, start + i, key, value, now) for i, (key, value) in enumerate(new)],
            )
            db.execute("INSERT OR REPLACE INTO topics VALUES (?,?)", (topic, start + len(new)))

    def reader(self, group: str | None, topics: Sequence[str]) -> "SqliteReader":
        return SqliteReader(self._path, group, topics)

    def end_offsets(self, topics: Sequence[str]) -> Offsets:
        with explained(self._path), self._lock:
            rows = dict(self._connection.execute("SELECT topic, next_offset FROM topics"))
        return {TopicPartition(topic, 0): rows.get(topic, 0) for topic in topics}

    def close(self) -> None:
        self._connection.close()


class SqliteReader:
    """See `LogReader`. Holds a lease a topic, renewed by polling; one thread at a time."""

    def __init__(self, path: Path, group: str | None, topics: Sequence[str]) -> None:
        self._path, self._topics = path, tuple(topics)
        self._owner = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._in_group = group is not None
        self._group = group or f"alone-{self._owner}"
        self._connection = connect(path)
        self._next: dict[str, int] = {}
        self._sought: dict[str, int] = {}  # where to start a topic whose lease is not ours yet
        self._lease_checked_at = -math.inf

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        deadline = time.monotonic() + timeout_s
        while True:
            batch = self._take(max_records)
            if batch or time.monotonic() >= deadline:
                return batch
            time.sleep(min(POLL_INTERVAL_S, max(0.0, deadline - time.monotonic())))

    def _take(self, max_records: int) -> list[LogRecord]:
        batch: list[LogRecord] = []
        reached: dict[str, int] = {}
        with explained(self._path):
            self._renew_leases()
            for topic, start in self._next.items():
                rows = self._connection.execute(
                    "SELECT topic, 0, offset, key, value, appended_at FROM records "
                    "WHERE topic=? AND offset>=? ORDER BY offset LIMIT ?",
                    (topic, start, max_records - len(batch)),
                ).fetchall()
                batch += [LogRecord(*row) for row in rows]
                if rows:
                    reached[topic] = rows[-1][2] + 1
        self._next |= reached  # all or none: an error half-way passes over nothing
        return batch

    def _renew_leases(self) -> None:
        """Take free or expired leases; forget topics that another reader has taken.

        A lease that ends later than any can be was taken before the clock was set back.
        """
        if time.monotonic() - self._lease_checked_at < LEASE_S / 5:
            return
        with transaction(self._connection) as db:
            now = time.time()  # after the wait for other writers: no lease seen here is newer
            for topic in self._topics:
                db.execute(
                    "INSERT INTO leases VALUES (?1,?2,?3,?4) ON CONFLICT DO UPDATE SET "
                    "owner=?3, until=?4 WHERE owner=?3 OR until<?5 OR until>?4",
                    (self._group, topic, self._owner, now + LEASE_S, now),
                )
                if not self._holds(db, topic):
                    self._next.pop(topic, None)
                elif topic not in self._next:
                    committed = self._committed_offset(db, topic)
                    self._next[topic] = self._sought.pop(topic, committed)
        self._lease_checked_at = time.monotonic()

    def _holds(self, db: sqlite3.Connection, topic: str) -> bool:
        row = db.execute(
            "SELECT owner FROM leases WHERE consumer_group=? AND topic=?", (self._group, topic)
        ).fetchone()
        return row is not None and row[0] == self._owner

    def _committed_offset(self, db: sqlite3.Connection, topic: str) -> int:
        row = db.execute(
            "SELECT offset FROM committed WHERE consumer_group=? AND topic=?", (self._group, topic)
        ).fetchone()
        return row[0] if row else 0

    def assignment(self) -> frozenset[TopicPartition]:
        with explained(self._path):
            self._renew_leases()
        return frozenset(TopicPartition(topic, 0) for topic in self._next)

    def positions(self) -> Offsets:
        with explained(self._path):
            self._renew_leases()
        return {TopicPartition(topic, 0): offset for topic, offset in self._next.items()}

    def commit(self, offsets: Offsets) -> None:
        if not self._in_group:
            raise ValueError("expected a reader with a group, got one without: it cannot commit")
        with explained(self._path), transaction(self._connection) as db:
            for place, offset in offsets.items():
                if not self._holds(db, place.topic):
                    raise LeaseLost(f"group {self._group}: {place.topic} has another reader")
                db.execute(
                    "INSERT OR REPLACE INTO committed VALUES (?,?,?)",
                    (self._group, place.topic, offset),
                )

    def committed(self) -> Offsets:
        with explained(self._path):
            rows = self._connection.execute(
                "SELECT topic, offset FROM committed WHERE consumer_group=?", (self._group,)
            ).fetchall()
        return {TopicPartition(t, 0): offset for t, offset in rows if t in self._topics}

    def seek(self, offsets: Offsets) -> None:
        self._lease_checked_at = -math.inf
        with explained(self._path):
            self._renew_leases()
        for place, offset in offsets.items():
            owned = place.topic in self._next
            (self._next if owned else self._sought)[place.topic] = offset

    def close(self) -> None:
        with suppress(sqlite3.Error):  # the lease ends by itself soon
            self._connection.execute("DELETE FROM leases WHERE owner=?", (self._owner,))
        self._connection.close()
