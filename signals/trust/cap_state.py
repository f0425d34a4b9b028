"""The caps for a stream: each trace's weight, decided once, when the trace is taken in.

A stream does not know its window's sum beforehand, so shares are of the window before it (or of
what is left of a fuller one: a quiet night does not throttle the morning). Within a window who
comes first counts first. State is four SQLite tables in the caller's file and transaction; the
clock is the log's, so a replay decides the same. With one state per partition the limits hold per
partition; `caps.capped` on a whole batch holds them exactly.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from signals.trust.caps import feasible_share
from tendril.settings import TrustSettings

SCHEMA = """
CREATE TABLE IF NOT EXISTS trust_accounts (
    account TEXT PRIMARY KEY, first_seen_at REAL NOT NULL, last_seen_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS trust_used (
    scope TEXT NOT NULL, name TEXT NOT NULL, mass REAL NOT NULL, PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS trust_start (
    one INTEGER PRIMARY KEY CHECK (one = 1), at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS trust_window (
    one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL, mass REAL NOT NULL,
    users INTEGER NOT NULL, tenants INTEGER NOT NULL);
"""
MASS_MEMORY = 0.9
"""Part of a fuller earlier window that shares may still be taken of."""
ACCOUNT_MEMORY_S = 180 * 86_400.0
"""An account that was away for longer is new again."""
MIN_BUDGET = 1.0
"""Whatever the shares, one trace of an old account counts: else a small service never starts."""


class Arrival(NamedTuple):
    """One trace that asks for its weight, at the log's time."""

    tenant: str
    user_key: str
    at: float

    @property
    def account(self) -> str:
        return f"{self.tenant}/{self.user_key}"


class Weighed(NamedTuple):
    """The weight of one trace, why it is below 1 (empty: it is not), and the account's age."""

    weight: float
    reason: str
    account_age_s: float | None
    """None: as old as the service."""


UNCAPPED = Weighed(1.0, "", None)


class Window(NamedTuple):
    """Number of the present window, and mass and numbers of names that its shares are of."""

    number: int
    mass: float
    users: int
    tenants: int


class CapState:
    """Owns the four tables; every method is called inside the caller's transaction."""

    def __init__(self, db: sqlite3.Connection, limits: TrustSettings) -> None:
        self._db, self._limits = db, limits
        for statement in SCHEMA.split(";"):  # executescript would commit the caller's transaction
            db.execute(statement)

    def weigh(self, arrivals: Sequence[Arrival]) -> list[Weighed]:
        """Weights in the order of `arrivals`, which come in the order of the log's time."""
        weighed: list[Weighed] = []
        window = self._window()
        old_before = self._started_at(arrivals) + self._limits.founding_s
        for number, group in groupby(arrivals, lambda a: int(a.at // self._limits.window_s)):
            if number > window.number:
                window = self._open_window(number, window)
            weighed += self._weigh_in(window, list(group), old_before)
        return weighed

    def _forget(self, at: float) -> None:
        """Drop accounts that were not seen for `ACCOUNT_MEMORY_S`."""
        self._db.execute(
            "DELETE FROM trust_accounts WHERE last_seen_at < ?", (at - ACCOUNT_MEMORY_S,)
        )

    def forget_account(self, tenant: str, user_key: str) -> int:
        """Erase one account; returns the number of rows that are gone."""
        name = (f"{tenant}/{user_key}",)
        gone = self._db.execute("DELETE FROM trust_accounts WHERE account = ?", name).rowcount
        used = self._db.execute("DELETE FROM trust_used WHERE scope='user' AND name = ?", name)
        return gone + used.rowcount

    def _started_at(self, arrivals: Sequence[Arrival]) -> float:
        """When the first trace came."""
        for arrival in arrivals[:1]:
            self._db.execute("INSERT OR IGNORE INTO trust_start VALUES (1, ?)", (arrival.at,))
        row = self._db.execute("SELECT at FROM trust_start").fetchone()
        return float(row[0]) if row else 0.0

    def _window(self) -> Window:
        row = self._db.execute("SELECT number, mass, users, tenants FROM trust_window").fetchone()
        return Window(*row) if row else Window(-1, 0.0, 0, 0)

    def _open_window(self, number: int, before: Window) -> Window:
        totals = {
            scope: (n, mass)
            for scope, n, mass in self._db.execute(
                "SELECT scope, COUNT(*), SUM(mass) FROM trust_used GROUP BY scope"
            )
        }
        users, mass = totals.get("user", (0, 0.0))
        tenants, _ = totals.get("tenant", (0, 0.0))
        faded = MASS_MEMORY ** min(number - before.number, 1_000) * before.mass
        if faded > mass:
            users, tenants, mass = before.users, before.tenants, faded
        window = Window(number, mass, users, tenants)
        self._forget(number * self._limits.window_s)
        self._db.execute("DELETE FROM trust_used")
        self._db.execute("INSERT OR REPLACE INTO trust_window VALUES (1,?,?,?,?)", window)
        return window

    def _weigh_in(
        self, window: Window, arrivals: Sequence[Arrival], old_before: float
    ) -> list[Weighed]:
        accounts = [arrival.account for arrival in arrivals]
        seen = self._seen(set(accounts))
        used = self._used({*accounts, *(arrival.tenant for arrival in arrivals), ""})
        rooms: dict[tuple[bool, bool], dict[str, tuple[str, float]]] = {}
        weighed = []
        for arrival, account in zip(arrivals, accounts, strict=True):
            at = arrival.at
            came_at, last_at = seen.get(account, (at, at))
            if at - last_at > ACCOUNT_MEMORY_S:
                came_at = at
            seen[account] = (came_at, max(last_at, at))
            age_s = at - came_at if came_at >= old_before else math.inf
            young = _young(age_s, self._limits)
            kind = age_s < self._limits.new_account_s, young
            if (room := rooms.get(kind)) is None:
                room = rooms[kind] = budgets(window, self._limits, age_s)
            owner = {"user": account, "tenant": arrival.tenant, "probation": ""}
            reason, left = "", math.inf
            for why, (scope, limit) in room.items():
                if (rest := limit - used.get((scope, owner[scope]), 0.0)) < left:
                    reason, left = why, rest
            weight = max(0.0, min(1.0, left))
            for scope in ("user", "tenant", "probation") if young else ("user", "tenant"):
                used[scope, owner[scope]] = used.get((scope, owner[scope]), 0.0) + weight
            shown_age_s = age_s if age_s < math.inf else None
            weighed.append(Weighed(weight, reason if weight < 1 else "", shown_age_s))
        self._save({account: seen[account] for account in accounts}, used)
        return weighed

    def _seen(self, accounts: Iterable[str]) -> dict[str, tuple[float, float]]:
        """First and last time, of the accounts that are known."""
        rows = self._db.execute(
            "SELECT account, first_seen_at, last_seen_at FROM trust_accounts "
            "WHERE account IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted(accounts)),),
        )
        return {account: (first_at, last_at) for account, first_at, last_at in rows}

    def _used(self, names: Iterable[str]) -> dict[tuple[str, str], float]:
        rows = self._db.execute(
            "SELECT scope, name, mass FROM trust_used "
            "WHERE name IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted(names)),),
        )
        return {(scope, name): mass for scope, name, mass in rows}

    def _save(
        self,
        seen: Mapping[str, tuple[float, float]],
        used: Mapping[tuple[str, str], float],
    ) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO trust_accounts VALUES (?,?,?)",
            [(account, *times) for account, times in seen.items()],
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO trust_used VALUES (?,?,?)",
            [(*key, mass) for key, mass in used.items()],
        )


def budgets(window: Window, limits: TrustSettings, age_s: float) -> dict[str, tuple[str, float]]:
    """By reason: the scope that it counts in, and what that may weigh in this window.

    The same for all ages that are on one side of each limit.
    """
    found: dict[str, tuple[str, float]] = {}
    if age_s < limits.new_account_s:
        found["new_account"] = ("user", 0.0)
    if limits.max_user_events:
        found["user_events"] = ("user", limits.max_user_events)
    if _young(age_s, limits):
        found["probation"] = ("probation", limits.max_probation_share * window.mass)
    for reason, scope, share, names in (
        ("user_share", "user", limits.max_user_share, window.users),
        ("tenant_share", "tenant", limits.max_tenant_share, window.tenants),
    ):
        feasible = feasible_share(share, names)
        if share and feasible < 1 and window.mass > 0:
            found[reason] = (scope, max(MIN_BUDGET, feasible * window.mass))
    return found


def _young(age_s: float, limits: TrustSettings) -> bool:
    return bool(limits.max_probation_share) and age_s < limits.probation_s
