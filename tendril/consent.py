"""Who may be learned from, and whose words may be kept: the fold of the `consents` topic.

A trace may be used if its owner agreed both when it was made and now: agreeing later grants nothing
that was refused before, and who says no takes back all that is not trained on yet. A tenant's
setting stands above its users' choices, but never above a deletion.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tendril.ids import digest_of
from tendril.log import EventLog, drain, readable
from tendril.records import Consent, Feedback
from tendril.settings import TenantConsent

NO_SETTING = TenantConsent()


class Change(NamedTuple):
    """One change, at the moment when it reached the log."""

    at: float
    train: bool | None
    content: bool | None
    deleted: bool


def person_of(tenant: str, user_key: str) -> str:
    """The name under which decisions are kept; nobody's key follows from it."""
    return digest_of("person", tenant, user_key)


def consent_of(event: Feedback) -> Consent | None:
    """The decision that an event reports; None for events of other kinds."""
    person = person_of(event.tenant, event.user_key)
    said_at = min(event.client_time, event.ingested_at)
    if event.type == "user.deletion_requested":
        return Consent(person=person, deleted=True, at=said_at)
    if event.type != "consent.changed":
        return None
    return Consent(
        person=person,
        train=event.train_consent,
        content=event.content_consent,
        consent_version=event.consent_version,
        at=said_at,
    )


def says_no(consent: Consent) -> bool:
    """To anything."""
    return consent.deleted or consent.train is False or consent.content is False


def may_train(
    changes: Sequence[Change], tenant: TenantConsent, *, made_at: float, as_of: float = math.inf
) -> bool:
    """Whether a trace logged at `made_at`, which agreed itself, may be trained on at `as_of`.

    `changes` are one person's, in log order.
    """
    if any(c.deleted and made_at <= c.at <= as_of for c in changes):
        return False
    if tenant.train is not None:
        return tenant.train
    return _trains(changes, made_at) and _trains(changes, as_of)


def may_keep_content(
    changes: Sequence[Change], tenant: TenantConsent, *, asked: bool, as_of: float = math.inf
) -> bool:
    """Whether words may be kept: `asked` is what the request itself says, by default no."""
    if tenant.content is not None:
        return tenant.content
    said = [c.content and not c.deleted for c in _until(changes, as_of) if _speaks_of_content(c)]
    return asked and (not said or bool(said[-1]))


def _trains(changes: Sequence[Change], as_of: float) -> bool:
    said = [c for c in _until(changes, as_of) if c.deleted or c.train is not None]
    return not said or (not said[-1].deleted and said[-1].train is True)


def _until(changes: Sequence[Change], as_of: float) -> list[Change]:
    return [change for change in changes if change.at <= as_of]


def _speaks_of_content(change: Change) -> bool:
    return change.deleted or change.content is not None


class Consents:
    """The fold in memory. One thread adds; any thread may ask."""

    def __init__(self, tenants: Mapping[str, TenantConsent]) -> None:
        self._tenants = tenants
        self._changes: dict[str, list[Change]] = {}
        self._added: set[Consent] = set()
        self._newest_no: dict[str, float] = {}

    def add(self, consent: Consent, at: float) -> None:
        """The next change in log order; a repeat changes nothing, also where a later one came."""
        if consent in self._added:
            return
        self._added.add(consent)
        if says_no(consent):
            newest = self._newest_no.get(consent.person, -math.inf)
            self._newest_no[consent.person] = max(newest, consent.at)
        elif consent.at < self._newest_no.get(consent.person, -math.inf):
            return  # an old yes that was delivered late
        change = Change(at, consent.train, consent.content, consent.deleted)
        self._changes.setdefault(consent.person, []).append(change)

    def allows_training(
        self, tenant: str, user_key: str, *, made_at: float, as_of: float = math.inf
    ) -> bool:
        """See `may_train`."""
        changes = self._of(tenant, user_key)
        return may_train(changes, self._setting(tenant), made_at=made_at, as_of=as_of)

    def allows_content(self, tenant: str, user_key: str, *, asked: bool) -> bool:
        """See `may_keep_content`."""
        changes = self._of(tenant, user_key)
        return may_keep_content(changes, self._setting(tenant), asked=asked)

    def trains_now(self, tenant: str, user_key: str, *, asked: bool) -> bool:
        """The flag for a trace that is made at this moment."""
        setting = self._setting(tenant).train
        if setting is not None:
            return setting
        return asked and _trains(self._of(tenant, user_key), math.inf)

    def _of(self, tenant: str, user_key: str) -> Sequence[Change]:
        return self._changes.get(person_of(tenant, user_key), ()) if self._changes else ()

    def _setting(self, tenant: str) -> TenantConsent:
        return self._tenants.get(tenant, NO_SETTING)


class ConsentFollower:
    """Reads `consents` from its beginning, beside all groups."""

    def __init__(self, log: EventLog, tenants: Mapping[str, TenantConsent]) -> None:
        self._reader = log.reader(None, (Consent.TOPIC,))
        self.consents = Consents(tenants)
        self.is_ready = False
        """Whether all that was there has been read once; until then nobody has agreed."""

    def follow(self) -> frozenset[str]:
        """Read what is new; the persons it is about. Raises `LogUnavailable`."""
        persons: set[str] = set()
        for consent, logged_at in readable(drain(self._reader), Consent):
            self.consents.add(consent, logged_at)
            persons.add(consent.person)
        self.is_ready = True
        return frozenset(persons)

    def close(self) -> None:
        self._reader.close()
