"""Quarantines in force: the fold of `quarantine` records, and what they hold back.

The log is the audit: nothing is changed or removed, a release is one more record. What held at an
earlier moment can be asked too, so that a replay decides as the first run did.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from tendril.log import EventLog, drain, readable
from tendril.records import (
    Episode,
    Graded,
    Quarantine,
    QuarantineScope,
    Trace,
)


class Subject(NamedTuple):
    """What a quarantine can be about: one decision, whether as trace or as episode."""

    trace_ids: tuple[str, ...]
    tenant: str
    user_key: str
    policy_versions: frozenset[int]
    served_at: float
    graded: tuple[Graded, ...] = ()

    @classmethod
    def of(cls, record: Trace | Episode) -> "Subject":
        parts = (record,) if isinstance(record, Trace) else record.segments
        graded = () if isinstance(record, Trace) else record.graded
        return cls(
            tuple(part.trace_id for part in parts),
            record.tenant,
            record.user_key,
            frozenset(span.policy_version for part in parts for span in part.policy_spans),
            record.served_at,
            graded,
        )


class Quarantines:
    """Quarantines by scope; `take` each record once, or more often, in the log's order."""

    def __init__(self, records: Iterable[Quarantine] = ()) -> None:
        self._history: dict[str, list[tuple[float, Quarantine]]] = {}
        self._ids: dict[tuple[str, str], list[str]] = {}
        self.num_taken = 0
        """Goes up with every record that changes something."""
        self.newest_at = 0.0
        """When the newest of them was logged."""
        for record in records:
            self.take(record, logged_at=record.at)

    def take(self, record: Quarantine, *, logged_at: float) -> None:
        """Apply one record. One that is released stays so until it is placed at a later time."""
        known = self.newest(record.quarantine_id)
        if known is not None and (record.at < known.at or record == known):
            return
        if known is None:
            self._ids.setdefault((record.scope, record.scope_id), []).append(record.quarantine_id)
        self._history.setdefault(record.quarantine_id, []).append((logged_at, record))
        self.num_taken += 1
        self.newest_at = max(self.newest_at, logged_at)

    def newest(self, quarantine_id: str) -> Quarantine | None:
        """The last word about one quarantine."""
        history = self._history.get(quarantine_id)
        return history[-1][1] if history else None

    def all(self) -> list[Quarantine]:
        """The last word about each, oldest first."""
        newest = (history[-1][1] for history in self._history.values())
        return sorted(newest, key=lambda q: (q.at, q.quarantine_id))

    def open(self) -> list[Quarantine]:
        """Those that hold rows back, oldest first."""
        return [record for record in self.all() if record.state == "placed"]

    def of(self, subject: Subject, *, as_of: float = math.inf) -> list[Quarantine]:
        """The quarantines that hold it at `as_of`, by the log's clock, oldest first."""
        found = {
            quarantine_id: record
            for quarantine_id, at in self._about(subject)
            if (record := self._placed(quarantine_id, as_of)) and covers(record, at)
        }
        return sorted(found.values(), key=lambda q: (q.at, q.quarantine_id))

    def free_at(self, episode: Episode, after: float) -> float | None:
        """The first moment from `after` on at which nothing holds the episode any more."""
        subject = Subject.of(episode)
        names = {name for name, _ in self._about(subject)}
        moments = {at for name in names for at, _ in self._history[name] if at > after}
        return next(
            (at for at in sorted({after, *moments}) if not self.of(subject, as_of=at)), None
        )

    def _about(self, subject: Subject) -> Iterable[tuple[str, float]]:
        """Ids of all quarantines of its scopes, each with a time that counts for it."""
        if not self._ids:
            return
        for scope, name, at in scopes_of(subject):
            for quarantine_id in self._ids.get((scope, name), ()):
                yield quarantine_id, at

    def _placed(self, quarantine_id: str, as_of: float) -> Quarantine | None:
        """The quarantine as it was at that moment, if it was in force."""
        known = [record for at, record in self._history.get(quarantine_id, ()) if at <= as_of]
        return known[-1] if known and known[-1].state == "placed" else None


def scopes_of(subject: Subject) -> list[tuple[QuarantineScope, str, float]]:
    """Every scope that it belongs to, with the time at which it did."""
    scopes: list[tuple[QuarantineScope, str]] = [
        ("user", account_id(subject.tenant, subject.user_key)),
        ("tenant", subject.tenant),
    ]
    scopes += [("trace", trace_id) for trace_id in subject.trace_ids]
    scopes += [("policy", str(version)) for version in sorted(subject.policy_versions)]
    timed = [(scope, name, subject.served_at) for scope, name in scopes]
    return [*timed, *(("grader", score.grader, score.at) for score in subject.graded)]


def covers(record: Quarantine, at: float) -> bool:
    """Whether a row of that time (served, or for graders graded) lies in the quarantine's."""
    return record.since <= at < (math.inf if record.until is None else record.until)


def account_id(tenant: str, user_key: str) -> str:
    """How findings and quarantines name a user."""
    return f"{tenant}/{user_key}"


class QuarantineFollower:
    """Reads `quarantine` from its beginning, beside all groups."""

    def __init__(self, log: EventLog) -> None:
        self._reader = log.reader(None, (Quarantine.TOPIC,))
        self.quarantines = Quarantines()

    def follow(self) -> bool:
        """Read what is new; whether anything changed. Raises `LogUnavailable`."""
        before = self.quarantines.num_taken
        for record, logged_at in readable(drain(self._reader), Quarantine):
            self.quarantines.take(record, logged_at=logged_at)
        return self.quarantines.num_taken > before

    def close(self) -> None:
        self._reader.close()
