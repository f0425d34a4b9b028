"""Quarantines in force: the fold of `quarantine` records, and what they hold back.

The log is the audit: nothing is changed or removed, a release is one more record.
"""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from signals.trust.finding import Finding
from tendril.ids import digest_of
from tendril.records import Episode, Quarantine, QuarantineScope

NO_GRADERS: Mapping[str, float] = MappingProxyType({})


class Quarantines:
    """Open quarantines by scope; `take` each record once, or more often, in the log's order."""

    def __init__(self, records: Iterable[Quarantine] = ()) -> None:
        self._by_id: dict[str, Quarantine] = {}
        self._open: dict[tuple[str, str], dict[str, Quarantine]] = {}
        for record in records:
            self.take(record)

    def take(self, record: Quarantine) -> None:
        """Apply one record. One that is released stays so until it is placed at a later time."""
        known = self._by_id.get(record.quarantine_id)
        if known is not None and record.at < known.at:
            return
        self._by_id[record.quarantine_id] = record
        key = record.scope, record.scope_id
        held = self._open.setdefault(key, {})
        if record.state == "placed":
            held[record.quarantine_id] = record
        else:
            held.pop(record.quarantine_id, None)
        if not held:
            del self._open[key]

    def newest(self, quarantine_id: str) -> Quarantine | None:
        """The last word about one quarantine."""
        return self._by_id.get(quarantine_id)

    def all(self) -> list[Quarantine]:
        """The last word about each, oldest first."""
        return sorted(self._by_id.values(), key=lambda q: (q.at, q.quarantine_id))

    def open(self) -> list[Quarantine]:
        """Those that hold rows back, oldest first."""
        return [record for record in self.all() if record.state == "placed"]

    def of(
        self, episode: Episode, *, graded_at: Mapping[str, float] = NO_GRADERS
    ) -> Quarantine | None:
        """The quarantine that holds the episode, the oldest of several; None if none does.

        `graded_at`: when each grader that its reward rests on scored it, by `name@version`.
        """
        if not self._open:
            return None
        found = [
            record
            for scope, name in scopes_of(episode, graded_at)
            for record in self._open.get((scope, name), {}).values()
            if covers(record, graded_at[name] if scope == "grader" else episode.served_at)
        ]
        return min(found, key=lambda q: (q.at, q.quarantine_id), default=None)


def scopes_of(episode: Episode, graders: Iterable[str] = ()) -> list[tuple[QuarantineScope, str]]:
    """Every scope that the episode belongs to."""
    scopes: list[tuple[QuarantineScope, str]] = [
        ("user", account_id(episode.tenant, episode.user_key)),
        ("tenant", episode.tenant),
    ]
    versions: set[int] = set()
    for segment in episode.segments:
        scopes.append(("trace", segment.trace_id))
        versions |= {span.policy_version for span in segment.policy_spans}
    scopes += [("policy", str(version)) for version in sorted(versions)]
    return scopes + [("grader", name) for name in graders]


def covers(record: Quarantine, at: float) -> bool:
    """Whether a row of that time (served, or for graders graded) lies in the quarantine's."""
    return record.since <= at < (math.inf if record.until is None else record.until)


def account_id(tenant: str, user_key: str) -> str:
    """How findings and quarantines name a user."""
    return f"{tenant}/{user_key}"


def quarantine_id(detector: str, scope: QuarantineScope, scope_id: str, since: float) -> str:
    """The same finding has the same id, so placing it twice changes nothing."""
    return digest_of("quarantine", detector, scope, scope_id, repr(float(since)))


def placed(
    findings: Iterable[Finding], known: Quarantines, *, actor: str, at: float
) -> list[Quarantine]:
    """Records for findings that hold rows back and are not known yet.

    A finding whose scope the same detector already holds up to its end adds nothing, nor does one
    that a person has released: the window that it was found in does not come back.
    """
    new: dict[str, Quarantine] = {}
    for finding in findings:
        if not finding.holds or finding.scope == "service":
            continue
        record = _placed(finding, actor=actor, at=at)
        if record.quarantine_id not in new and not _is_known(known, record):
            new[record.quarantine_id] = record
    return list(new.values())


def released(record: Quarantine, *, reason: str, actor: str, at: float) -> Quarantine:
    """The record that lets the rows back in."""
    return msgspec.structs.replace(
        record, state="released", reason=reason, actor=actor, at=max(at, record.at)
    )


def by_hand(
    scope: QuarantineScope,
    scope_id: str,
    *,
    since: float,
    until: float | None,
    reason: str,
    actor: str,
    at: float,
) -> Quarantine:
    """A quarantine that a person places."""
    return Quarantine(
        quarantine_id=quarantine_id("manual", scope, scope_id, since), state="placed", scope=scope,
        scope_id=scope_id, since=since, until=until, detector="manual", reason=reason, actor=actor,
        at=at,
    )  # fmt: skip


def counts(records: Iterable[Quarantine]) -> Mapping[str, int]:
    """Open quarantines by detector, for telemetry."""
    found: dict[str, int] = {}
    for record in records:
        found[record.detector] = found.get(record.detector, 0) + 1
    return found


def _placed(finding: Finding, *, actor: str, at: float) -> Quarantine:
    assert finding.scope != "service"
    name = quarantine_id(finding.detector, finding.scope, finding.scope_id, finding.since)
    return Quarantine(
        quarantine_id=name, state="placed", scope=finding.scope, scope_id=finding.scope_id,
        since=finding.since, until=finding.until if math.isfinite(finding.until) else None,
        detector=finding.detector, figure=finding.figure, limit=finding.limit, reason=finding.why,
        actor=actor, at=at,
    )  # fmt: skip


def _is_known(known: Quarantines, record: Quarantine) -> bool:
    before = known.newest(record.quarantine_id)
    if before is None:
        return False
    if before.state == "released":
        return True
    if before.until is None or record.until is None:
        return before.until is record.until  # an outage that has ended gets its end
    return record.until <= before.until
