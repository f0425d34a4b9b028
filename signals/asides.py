"""Feedback about a session or user as a whole: its ids, and the clock skew heartbeats tell."""

import sqlite3
from typing import NamedTuple

SCHEMA = """
CREATE TABLE IF NOT EXISTS asides (
    owner TEXT NOT NULL, event_id TEXT NOT NULL, forget_at REAL NOT NULL, at REAL NOT NULL,
    skew_s REAL, PRIMARY KEY (owner, event_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS asides_by_age ON asides (forget_at);
CREATE INDEX IF NOT EXISTS heartbeats ON asides (at) WHERE skew_s IS NOT NULL;
"""


class Aside(NamedTuple):
    """Feedback about a session or a user: remembered for its id, heartbeats for their skew."""

    owner: str
    event_id: str
    forget_at: float
    at: float
    skew_s: float | None


class Asides:
    """The table `asides` of a state file. The caller's transaction holds what it changes."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def put(self, aside: Aside) -> bool:
        """Remember feedback without a trace; False if it is a repeat."""
        row = self._db.execute("INSERT OR IGNORE INTO asides VALUES (?,?,?,?,?)", aside)
        return row.rowcount == 1

    def has_heartbeats(self) -> bool:
        [(found,)] = self._db.execute(
            "SELECT EXISTS (SELECT 1 FROM asides WHERE skew_s IS NOT NULL)"
        )
        return bool(found)

    def heartbeat_skews_s(self, owner: str, before: float) -> list[float]:
        """Ingest minus client time of the owner's heartbeats that were logged before a moment."""
        rows = self._db.execute(
            "SELECT skew_s FROM asides WHERE owner=? AND at<? AND skew_s IS NOT NULL",
            (owner, before),
        )
        return [row[0] for row in rows]

    def forget(self, clock: float) -> None:
        """Drop ids that nobody will ask for any more."""
        self._db.execute("DELETE FROM asides WHERE forget_at <= ?", (clock,))
