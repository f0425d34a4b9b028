"""Finds what a user left on the event log: ids, places, and the versions trained on it."""

from signals.privacy.owner import Owner, Plan
from signals.privacy.trained import trained_on
from tendril.log import EventLog, LogRecord, read_all
from tendril.records import (
    TYPE_BY_TOPIC,
    Consent,
    Episode,
    Feedback,
    InvalidRecord,
    PolicyManifest,
    Record,
    Trace,
    decode,
)


def survey(log: EventLog, owner: Owner) -> Plan:
    """Read the log once, from its beginning. Raises `LogUnavailable`."""
    trace_ids, episode_ids, session_ids = set(), set(), set()
    episodes: list[tuple[str, int, Episode]] = []
    key = owner.user_key.encode()
    topics = (Trace.TOPIC, Feedback.TOPIC, Episode.TOPIC)
    for record in read_all(log, topics):
        found = _decoded(record) if key in record.value else None
        if found is None or not isinstance(found, (Trace, Feedback, Episode)):
            continue
        if (found.tenant, found.user_key) != (owner.tenant, owner.user_key):
            continue
        session_ids.add(found.session_id)
        if isinstance(found, Trace):
            trace_ids.add(found.trace_id)
        elif isinstance(found, Episode):
            episode_ids.add(found.episode_id)
            trace_ids |= {segment.trace_id for segment in found.segments}
            episodes.append((f"{record.topic}/{record.partition}", record.offset, found))
    return Plan(
        trace_ids=frozenset(trace_ids),
        episode_ids=frozenset(episode_ids),
        session_ids=frozenset(session_ids),
        policy_versions=trained_on(episodes, _manifests(log)) if episodes else frozenset(),
    )


def is_recorded(log: EventLog, person: str) -> bool:
    """Whether the log says already that this person is to be forgotten."""
    for record in read_all(log, (Consent.TOPIC,)):
        found = _decoded(record)
        if isinstance(found, Consent) and found.deleted and found.person == person:
            return True
    return False


def count_on_log(log: EventLog, owner: Owner) -> dict[str, int]:
    """Records that hold the user's key, by topic."""
    counts: dict[str, int] = {}
    topics = (Trace.TOPIC, Feedback.TOPIC, Episode.TOPIC, "dead_letters", "quarantine")
    for record in read_all(log, topics):
        if owner.user_key.encode() in record.value:
            counts[record.topic] = counts.get(record.topic, 0) + 1
    return counts


def _manifests(log: EventLog) -> dict[int, PolicyManifest]:
    found = (_decoded(record) for record in read_all(log, (PolicyManifest.TOPIC,)))
    return {m.policy_version: m for m in found if isinstance(m, PolicyManifest)}


def _decoded(record: LogRecord) -> Record | None:
    try:
        return decode(TYPE_BY_TOPIC[record.topic], record.value)
    except InvalidRecord:
        return None
