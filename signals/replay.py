"""Rewards of the past by another recipe: the log is joined again, as of its end.

Sessions are independent, so several workers may take a share of them each; the result is ordered
by time and does not depend on shares or batch sizes.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import msgspec

from signals.intake import take
from signals.joiner import SETTLE_S, TOPICS, Joiner
from signals.review import Reviewer
from signals.state import State
from tendril.ids import digest_of
from tendril.log import EventLog, LogRecord, TopicPartition
from tendril.records import Consent, Episode, InvalidRecord, decode
from tendril.settings import Settings

BATCH_RECORDS = 10_000
POLL_S = 0.2


def replay(
    log: EventLog,
    reviewer: Reviewer,
    settings: Settings,
    *,
    since: float = 0.0,
    share: tuple[int, int] = (0, 1),
    batch_records: int = BATCH_RECORDS,
) -> list[Episode]:
    """The newest episode of each trace logged from `since` on, in order of time.

    `share` (i, n): only sessions whose hash is i modulo n. Raises `LogUnavailable`.
    """
    with tempfile.TemporaryDirectory() as folder:
        joiners: dict[int, Joiner] = {}
        consents = read_all(log, Consent.TOPIC)
        newest, until = dict[str, Episode](), 0.0
        for records in batches(log, batch_records):
            until = max(until, *(record.appended_at for record in records))
            mine = [r for r in records if r.appended_at >= since and is_of(r.key, share)]
            for number in {record.partition for record in mine}:
                if number not in joiners:
                    state = State(Path(folder) / f"{number}.db")
                    tenants = settings.privacy.tenants
                    joiners[number] = Joiner(state, reviewer, partition=number, tenants=tenants)
                here = [record for record in mine if record.partition == number]
                newest |= _step(joiners[number], here, 0.0, consents)
        for joiner in joiners.values():
            newest |= _step(joiner, [], until, consents)
    return sorted(newest.values(), key=lambda e: (e.closed_at, e.segments[0].trace_id))


def is_of(key: str, share: tuple[int, int]) -> bool:
    """Whether a session belongs to that share of the work."""
    return crc32(key.encode()) % share[1] == share[0]


def batches(log: EventLog, batch_records: int) -> Iterator[Sequence[LogRecord]]:
    """Traces and feedback up to where the log ends now."""
    ends, reader = log.end_offsets(TOPICS), log.reader(None, TOPICS)
    try:
        while True:
            records = reader.poll(batch_records, POLL_S)
            if found := [
                r for r in records if r.offset < ends[TopicPartition(r.topic, r.partition)]
            ]:
                yield found
            if all(reader.positions().get(place, 0) >= end for place, end in ends.items()):
                return
    finally:
        reader.close()


def read_all(log: EventLog, topic: str) -> list[LogRecord]:
    """All of one topic, as it is now."""
    reader, found = log.reader(None, [topic]), list[LogRecord]()
    try:
        while records := reader.poll(BATCH_RECORDS, POLL_S):
            found += records
    finally:
        reader.close()
    return found


def published(log: EventLog) -> dict[str, Episode]:
    """By trace, the newest episode on the log."""
    newest: dict[str, Episode] = {}
    for record in read_all(log, Episode.TOPIC):
        with contextlib.suppress(InvalidRecord):
            episode = decode(Episode, record.value)
            newest[episode.segments[0].trace_id] = episode
    return newest


def as_revisions(replayed: Sequence[Episode], before: Mapping[str, Episode]) -> list[Episode]:
    """What replaces published episodes whose reward or credit is another now."""
    revised = []
    for episode in replayed:
        trace_id = episode.segments[0].trace_id
        old = before.get(trace_id)
        if old is None or is_equal(old, episode):
            continue
        revision = old.revision + 1
        revised.append(
            msgspec.structs.replace(
                episode,
                revision=revision,
                episode_id=digest_of(trace_id, episode.recipe_digest, str(revision)),
                supersedes=old.episode_id,
                previous_maturity=old.maturity,
            )
        )
    return revised


def is_equal(one: Episode, other: Episode) -> bool:
    """Whether both say the same of a trace."""
    return (one.reward, one.weight, one.outcome, one.segments) == (
        other.reward, other.weight, other.outcome, other.segments,
    )  # fmt: skip


def _step(
    joiner: Joiner, records: Sequence[LogRecord], until: float, consents: Sequence[LogRecord]
) -> dict[str, Episode]:
    batch, at_end = take(records), until > 0
    while joiner.step(batch, now=until + SETTLE_S, caught_up=at_end, consents=consents):
        batch = take([])
    outgoing = joiner.take_outgoing()
    if outgoing:
        joiner.sent(outgoing[-1][0])
    episodes = [record for _, _, record in outgoing if isinstance(record, Episode)]
    return {episode.segments[0].trace_id: episode for episode in episodes}
