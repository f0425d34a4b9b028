"""Deletes rows from SQLite files so that their bytes are gone too: freed pages and write-ahead log.

Works on any table, so a file that gains one is covered. Rows are found without a lock and deleted
in short transactions: processes that use the file go on meanwhile.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from signals.privacy.owner import Matches
from tendril.log import LogUnavailable
from tendril.log.sqlite_file import connect, explained, transaction

MAGIC = b"SQLite format 3\x00"
ROWS_AT_ONCE = 500
TRIES = 50
RETRY_S = 0.1


def sqlite_files(folder: Path) -> list[Path]:
    """Every SQLite file below `folder`, whoever made it."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and is_sqlite(path))


def is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def count_rows(path: Path, matches: Matches) -> dict[str, int]:
    """Rows that match, by table, of tables that have any."""
    with explained(path), closing(connect(path)) as db:
        found = {table: sum(1 for _ in _keys(db, table, matches)) for table in _tables(db)}
    return {table: n for table, n in found.items() if n}


def erase_rows(path: Path, matches: Matches) -> dict[str, int]:
    """Delete rows that match and leave none of their bytes in the file; returns them by table.

    Raises `LogUnavailable` where a reader holds the file for seconds: run it again.
    """
    with explained(path), closing(connect(path)) as db:
        db.execute("PRAGMA secure_delete=ON")
        erased = {table: _erase_table(db, table, matches) for table in _tables(db)}
        _rewrite(db, path)
    return {table: n for table, n in erased.items() if n}


def _tables(db: sqlite3.Connection) -> list[str]:
    rows = db.execute(
        "SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%'"
    )
    return sorted(name for (name,) in rows)


def _erase_table(db: sqlite3.Connection, table: str, matches: Matches) -> int:
    keys, num_erased = list(_keys(db, table, matches)), 0
    condition = " AND ".join(f'"{column}" IS ?' for column in _key_columns(db, table))
    for start in range(0, len(keys), ROWS_AT_ONCE):
        with transaction(db):
            some = keys[start : start + ROWS_AT_ONCE]
            sql = f'DELETE FROM "{table}" WHERE {condition}'
            num_erased += db.executemany(sql, some).rowcount
    return num_erased


def _keys(db: sqlite3.Connection, table: str, matches: Matches) -> Iterator[tuple[object, ...]]:
    columns = _key_columns(db, table)
    names = ", ".join(f'"{column}"' for column in columns)
    for row in db.execute(f'SELECT {names}, * FROM "{table}"'):
        if any(isinstance(value, (str, bytes)) and matches(value) for value in row):
            yield row[: len(columns)]


def _key_columns(db: sqlite3.Connection, table: str) -> list[str]:
    info = db.execute(f'PRAGMA table_info("{table}")').fetchall()
    key = [name for _, name, _, _, _, place in sorted(info, key=lambda c: int(c[5])) if place]
    return key or ["rowid"]


def _rewrite(db: sqlite3.Connection, path: Path) -> None:
    """Write the file anew: what was deleted long ago may still lie in its free pages."""
    for _ in range(TRIES):
        try:
            db.execute("VACUUM")
            busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            busy = True
        if not busy:
            return
        time.sleep(RETRY_S)
    raise LogUnavailable(
        f"{path}: the rows are deleted, their bytes not yet overwritten, as a reader holds the "
        "file; run it again"
    )
