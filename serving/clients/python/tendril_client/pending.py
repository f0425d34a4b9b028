"""Events that wait to be delivered, in order: an SQLite file, or memory.

A file outlives the process. Several processes may share it; an event that two of them send is
counted once by the server.
"""

import sqlite3
import threading
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pending (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE,
    endpoint TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS sessions (session_id TEXT PRIMARY KEY, last_seq INTEGER NOT NULL);
"""


class PendingEvent(NamedTuple):
    """An event in its wire form, and where it goes."""

    event_id: str
    endpoint: str
    body: str


class PendingEvents:
    """A bounded queue; safe to use from several threads."""

    def __init__(self, path: Path | None) -> None:
        """`path`: the file, made if missing; None keeps the events in memory."""
        target = ":memory:" if path is None else str(path)
        # Autocommit: each statement is durable when it returns.
        self._connection = sqlite3.connect(target, isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(_SCHEMA)

    def __len__(self) -> int:
        with self._lock:
            [(count,)] = self._connection.execute("SELECT count(*) FROM pending")
        return int(count)

    def next_seq(self, session_id: str) -> int:
        """1, 2, ... for each session, going on after a restart."""
        with self._lock:
            [(seq,)] = self._connection.execute(
                "INSERT INTO sessions VALUES (?, 1) "
                "ON CONFLICT (session_id) DO UPDATE SET last_seq = last_seq + 1 RETURNING last_seq",
                (session_id,),
            ).fetchall()
        return int(seq)

    def add(self, event: PendingEvent) -> None:
        with self._lock:
            self._connection.execute(
                "INSERT INTO pending (event_id, endpoint, body) VALUES (?, ?, ?)", event
            )

    def oldest(self, limit: int) -> list[PendingEvent]:
        """Up to `limit` events from the front, all of one endpoint."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT event_id, endpoint, body FROM pending ORDER BY position LIMIT ?", (limit,)
            ).fetchall()
        events = [PendingEvent(*row) for row in rows]
        return list(takewhile(lambda event: event.endpoint == events[0].endpoint, events))

    def remove(self, event_ids: list[str]) -> None:
        with self._lock:
            self._connection.executemany(
                "DELETE FROM pending WHERE event_id = ?", [(event_id,) for event_id in event_ids]
            )

    def close(self) -> None:
        with self._lock:
            self._connection.close()
