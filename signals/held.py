"""Episodes that a quarantine keeps back after their trace's last look, until it is released."""

import sqlite3
from collections.abc import Collection, Sequence
from typing import NamedTuple

from tendril.quarantine import Quarantines
from tendril.records import Episode, decode, encode

SCHEMA = """
CREATE TABLE IF NOT EXISTS held (
    trace_id TEXT PRIMARY KEY, appended_at REAL NOT NULL, free_at REAL, value BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS held_by_release ON held (free_at);
"""
MAX_FREED = 2_000
MEMORY_S = 90 * 86_400.0
"""After which a release finds the row in the lake alone."""


class Freed(NamedTuple):
    """An episode that nothing holds any more, from `free_at` on."""

    appended_at: float
    """Of its trace."""
    free_at: float
    episode: Episode
    """As it was held."""


class Held:
    """The table `held` of a state file. The caller's transaction holds what it changes."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def keep(self, appended_at: float, episode: Episode, quarantines: Quarantines) -> None:
        """`episode` is the newest word about its trace, and is held."""
        free_at = quarantines.free_at(episode, episode.closed_at)
        self._db.execute(
            "INSERT OR REPLACE INTO held VALUES (?,?,?,?)",
            (episode.segments[0].trace_id, appended_at, free_at, encode(episode)),
        )

    def drop(self, trace_ids: Collection[str]) -> None:
        self._db.executemany("DELETE FROM held WHERE trace_id=?", [(name,) for name in trace_ids])

    def reconsider(self, quarantines: Quarantines) -> None:
        """Quarantines have come or gone: when is each free now?"""
        rows = self._db.execute("SELECT trace_id, value FROM held").fetchall()
        episodes = ((name, decode(Episode, value)) for name, value in rows)
        self._db.executemany(
            "UPDATE held SET free_at=? WHERE trace_id=?",
            [(quarantines.free_at(held, held.closed_at), name) for name, held in episodes],
        )

    def freed(self, clock: float) -> Sequence[Freed]:
        """The first `MAX_FREED` that are free by `clock` and whose trace is over, in order."""
        rows = self._db.execute(
            "SELECT appended_at, free_at, value FROM held WHERE free_at <= ? AND NOT EXISTS "
            "(SELECT 1 FROM traces WHERE traces.trace_id = held.trace_id) "
            "ORDER BY free_at, trace_id LIMIT ?",
            (clock, MAX_FREED),
        ).fetchall()
        return [Freed(at, free_at, decode(Episode, value)) for at, free_at, value in rows]

    def forget(self, clock: float) -> None:
        """Drop what nobody has released for `MEMORY_S`."""
        self._db.execute("DELETE FROM held WHERE appended_at < ?", (clock - MEMORY_S,))
