"""What a partition has decided and not yet sent, in its state file, numbered from 1."""

import sqlite3
from collections.abc import Sequence

from tendril.records import TYPE_BY_TOPIC, Record, decode, encode

SCHEMA = """
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key TEXT NOT NULL,
    value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS outbox_logged (
    one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL);
"""

Outgoing = tuple[int, str, Record]
"""Number, key and record of what is to be appended to the log."""


class Outbox:
    """The table `outbox`. The caller's transaction holds what changes."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def start(self, first: int) -> None:
        """Number what comes from `first` on: a new file goes on where a lost one has ended."""
        if self._last() < first - 1:
            self._db.execute("DELETE FROM sqlite_sequence WHERE name = 'outbox'")
            self._db.execute("INSERT INTO sqlite_sequence VALUES ('outbox', ?)", (first - 1,))

    def put(self, records: Sequence[tuple[str, Record]]) -> list[Outgoing]:
        """Keep records for the log, each with its key."""
        if not records:
            return []
        first = self._last() + 1
        self._db.executemany(
            "INSERT INTO outbox VALUES (?,?,?,?)",
            [
                (number, record.TOPIC, key, encode(record))
                for number, (key, record) in enumerate(records, first)
            ],
        )
        return [(number, key, record) for number, (key, record) in enumerate(records, first)]

    def _last(self) -> int:
        """The highest number ever given."""
        [(last,)] = self._db.execute(
            "SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0)"
        )
        return int(last)

    def waiting(self, *, after: int, limit: int) -> list[Outgoing]:
        """The oldest from behind number `after` on."""
        rows = self._db.execute(
            "SELECT seq, topic, key, value FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?",
            (after, limit),
        ).fetchall()
        return [(seq, key, decode(TYPE_BY_TOPIC[topic], value)) for seq, topic, key, value in rows]

    def logged(self) -> int:
        """The last number that is known to be on the log; some stay longer, for the lake."""
        row = self._db.execute("SELECT seq FROM outbox_logged").fetchone()
        return int(row[0]) if row else 0

    def note_logged(self, up_to: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO outbox_logged VALUES (1, ?)", (up_to,))

    def sent(self, up_to: int) -> None:
        """All up to that number is where it belongs."""
        self._db.execute("DELETE FROM outbox WHERE seq <= ?", (up_to,))
