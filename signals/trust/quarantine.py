"""Makes quarantine records: of findings, by a person's hand, and their release."""

import math
from collections.abc import Iterable, Mapping

import msgspec

from signals.trust.finding import Finding
from tendril.ids import digest_of
from tendril.quarantine import Quarantines
from tendril.records import Quarantine, QuarantineScope


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
        record = after(_placed(finding, actor=actor, at=at), known)
        if record.quarantine_id not in new and not _is_known(known, record):
            new[record.quarantine_id] = record
    return list(new.values())


def after(record: Quarantine, known: Quarantines) -> Quarantine:
    """The record, stamped no earlier than the last word about it: clocks of machines differ."""
    before = known.newest(record.quarantine_id)
    at = record.at if before is None else max(record.at, before.at)
    return msgspec.structs.replace(record, at=at)


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
