"""What was read and what became of it, by hour and kind; the sums must agree after every batch.

The hour is that in which the record was logged, so a record leaves `pending` in the hour in which
it was read, whenever its fate is known.
"""

import sqlite3
from collections import Counter
from typing import Literal, get_args

Kind = Literal["traces", "feedback"]
KINDS: tuple[Kind, ...] = ("traces", "feedback")
Fate = Literal[
    "joined", "duplicate", "orphan", "late", "quarantined", "opted_out", "invalid", "no_trace"
]
"""`no_trace`: feedback about a session or a user, such as a heartbeat, which pays no trace."""
FATES: tuple[Fate, ...] = get_args(Fate)
Name = Literal["read", "pending"] | Fate
HOUR_S = 3_600
SCHEMA = """
CREATE TABLE IF NOT EXISTS counts (
    hour INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, n INTEGER NOT NULL,
    PRIMARY KEY (hour, kind, name)) WITHOUT ROWID;
"""


class Counts:
    """The table `counts` of a state file, and what the running transaction adds to it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._added: Counter[tuple[int, str, str]] = Counter()

    def read(self, kind: Kind, at: float, fate: Literal["pending"] | Fate, n: int = 1) -> None:
        """`n` records of the hour of `at` were read, and met `fate`, or wait for theirs."""
        hour = int(at // HOUR_S)
        self._added[hour, kind, "read"] += n
        self._added[hour, kind, fate] += n

    def settle(self, kind: Kind, at: float, fate: Fate, n: int = 1) -> None:
        """`n` records that waited have met `fate`."""
        hour = int(at // HOUR_S)
        self._added[hour, kind, "pending"] -= n
        self._added[hour, kind, fate] += n

    def move(self, kind: Kind, at: float, before: Fate, after: Fate) -> None:
        """One record's fate is another one now."""
        hour = int(at // HOUR_S)
        self._added[hour, kind, before] -= 1
        self._added[hour, kind, after] += 1

    def forget(self) -> None:
        """A transaction begins: what an earlier one could not save is void."""
        self._added.clear()

    def save(self) -> None:
        """Add to the table. Raises `RuntimeError` where an hour does not balance."""
        self._db.executemany(
            "INSERT INTO counts VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET n = n + excluded.n",
            [(*key, n) for key, n in self._added.items() if n],
        )
        for hour, kind in {(hour, kind) for hour, kind, _ in self._added}:
            rows = self._db.execute(
                "SELECT name, n FROM counts WHERE hour = ? AND kind = ?", (hour, kind)
            )
            names = dict(rows.fetchall())
            read = names.pop("read", 0)
            if read != sum(names.values()) or min(names.values(), default=0) < 0:
                raise RuntimeError(
                    f"hour {hour}, {kind}: expected {read} accounted for, got {names}"
                )
        self._added.clear()

    def totals(self) -> dict[str, dict[str, int]]:
        """By kind: how many were read, are pending, and met each fate."""
        totals = {str(kind): dict.fromkeys(("read", "pending", *FATES), 0) for kind in KINDS}
        rows = self._db.execute("SELECT kind, name, SUM(n) FROM counts GROUP BY kind, name")
        for kind, name, n in rows:
            totals[kind][name] = n
        return totals
