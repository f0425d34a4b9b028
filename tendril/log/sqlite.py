"""The embedded event log: one SQLite file, durable, shared by the processes of one machine.

Write-ahead logging: readers never block the writer; writers queue for at most `BUSY_TIMEOUT_S`.
"""

import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from zlib import crc32

from tendril.log.partitions import SHARED, num_partitions
from tendril.log.protocol import Offsets, TopicPartition
from tendril.log.sqlite_file import connect, explained, transaction
from tendril.log.sqlite_group import sequence_of
from tendril.log.sqlite_reader import SqliteReader
from tendril.records import Record, encode
from tendril.settings import InvalidSettings

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
CREATE TABLE IF NOT EXISTS members (
    consumer_group TEXT NOT NULL, topic TEXT NOT NULL, member TEXT NOT NULL, until REAL NOT NULL,
    PRIMARY KEY (consumer_group, topic, member));
CREATE TABLE IF NOT EXISTS shape (
    one INTEGER PRIMARY KEY CHECK (one = 1), partitions INTEGER NOT NULL);
"""
"""A `topic` names one partition, see `sequence_of`; in `members` it is the topic itself."""


class SqliteLog:
    """See `EventLog`. Thread-safe; any number of processes may open the same file."""

    def __init__(self, path: Path, partitions: int | None = None) -> None:
        """`partitions` of traces and of feedback, fixed when the file is made; None: as they are.

        Raises `LogUnavailable`, and `InvalidSettings` where the file has another number.
        """
        self._path = path
        self._lock = threading.Lock()
        self._connection = connect(path)
        try:
            with explained(path):
                self._connection.executescript(SCHEMA)
                self.partitions = self._shape(partitions)
        except BaseException:
            self._connection.close()
            raise

    def _shape(self, wanted: int | None) -> int:
        """How many partitions traces and feedback have; a file from before has one."""
        found = _found(self._connection)
        if found is None:
            with transaction(self._connection) as db:
                found = _found(db) or (1 if _has_shared(db) else wanted)
                if found is not None:
                    db.execute("INSERT OR REPLACE INTO shape VALUES (1, ?)", (found,))
        if found is not None and wanted not in (None, found):
            raise InvalidSettings(
                f"{self._path}: expected log.partitions = {found}, as the file was made, got "
                f"{wanted}. Set it to that, or choose another log.path to start an empty one"
            )
        return found or 1

    def append(self, records: Iterable[tuple[str, Record]]) -> None:
        rows = [(self._sequence(record.TOPIC, key), key, encode(record)) for key, record in records]
        with explained(self._path), self._lock, transaction(self._connection) as db:
            self._insert(db, rows)

    def _sequence(self, topic: str, key: str) -> str:
        if self.partitions == 1 or topic not in SHARED:
            return topic
        return sequence_of(TopicPartition(topic, crc32(key.encode()) % self.partitions))

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

    def reader(self, group: str | None, topics: Sequence[str]) -> SqliteReader:
        return SqliteReader(self._path, group, self._places(topics))

    def _places(self, topics: Sequence[str]) -> list[TopicPartition]:
        return [
            TopicPartition(topic, number)
            for topic in topics
            for number in range(num_partitions(topic, self.partitions))
        ]

    def end_offsets(self, topics: Sequence[str]) -> Offsets:
        with explained(self._path), self._lock:
            rows = dict(self._connection.execute("SELECT topic, next_offset FROM topics"))
        return {place: rows.get(sequence_of(place), 0) for place in self._places(topics)}

    def close(self) -> None:
        self._connection.close()


def _found(db: sqlite3.Connection) -> int | None:
    row = db.execute("SELECT partitions FROM shape").fetchone()
    return None if row is None else int(row[0])


def _has_shared(db: sqlite3.Connection) -> bool:
    """Whether traces or feedback have been given a partition."""
    rows = db.execute("SELECT topic FROM topics").fetchall()
    return any(topic.partition("/")[0] in SHARED for (topic,) in rows)
