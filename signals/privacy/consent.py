"""Consents in a joiner's state file: the same fold as in memory, durable with its offsets."""

import math
import sqlite3
from collections.abc import Mapping

from tendril.consent import Change, may_keep_content, may_train, person_of, says_no
from tendril.records import Consent
from tendril.settings import TenantConsent

SCHEMA = """
CREATE TABLE IF NOT EXISTS consents (
    person TEXT NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL, train INTEGER, content INTEGER,
    deleted INTEGER NOT NULL, said_at REAL NOT NULL, PRIMARY KEY (person, seq)) WITHOUT ROWID;
"""
NO_SETTING = TenantConsent()


class ConsentTable:
    """The table `consents` of a state file. The caller's transaction holds what it changes."""

    def __init__(self, db: sqlite3.Connection, tenants: Mapping[str, TenantConsent]) -> None:
        """`db` has the table already: see `SCHEMA`."""
        self._db, self._tenants = db, tenants

    def change(self, consent: Consent, *, offset: int, at: float) -> None:
        """The record of the `consents` topic at `offset`, logged `at`; a repeat does nothing, also
        where it lies on the log twice with another decision between."""
        if not says_no(consent) and consent.at < self._newest_no(consent.person):
            return  # an old yes that was delivered late
        said = (consent.train, consent.content, consent.deleted, consent.at)
        self._db.execute(
            "INSERT OR IGNORE INTO consents SELECT ?,?,?,?,?,?,? WHERE NOT EXISTS ("
            "SELECT 1 FROM consents WHERE person=? AND train IS ? AND content IS ? "
            "AND deleted=? AND said_at=?)",
            (consent.person, offset, at, *said, consent.person, *said),
        )

    def _newest_no(self, person: str) -> float:
        """When the newest no of a person was said."""
        [(at,)] = self._db.execute(
            "SELECT MAX(said_at) FROM consents WHERE person=? "
            "AND (deleted OR train = 0 OR content = 0)",
            (person,),
        )
        return -math.inf if at is None else float(at)

    def say_something(self) -> bool:
        """Whether anybody has decided anything; if not, each trace's own flag is all there is."""
        [(found,)] = self._db.execute("SELECT EXISTS (SELECT 1 FROM consents)")
        return bool(found or self._tenants)

    def allows_training(
        self, tenant: str, user_key: str, *, made_at: float, as_of: float = math.inf
    ) -> bool:
        """See `tendril.consent.may_train`. With `as_of` a replay decides as the first run did."""
        changes, setting = self._of(tenant, user_key), self._tenants.get(tenant, NO_SETTING)
        return may_train(changes, setting, made_at=made_at, as_of=as_of)

    def allows_content(
        self, tenant: str, user_key: str, *, asked: bool, as_of: float = math.inf
    ) -> bool:
        """See `tendril.consent.may_keep_content`."""
        changes, setting = self._of(tenant, user_key), self._tenants.get(tenant, NO_SETTING)
        return may_keep_content(changes, setting, asked=asked, as_of=as_of)

    def _of(self, tenant: str, user_key: str) -> list[Change]:
        rows = self._db.execute(
            "SELECT at, train, content, deleted FROM consents WHERE person=? ORDER BY seq",
            (person_of(tenant, user_key),),
        )
        return [Change(at, _flag(t), _flag(c), bool(d)) for at, t, c, d in rows]


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)
