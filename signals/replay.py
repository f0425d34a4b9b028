"""Rewards of the past by another recipe: the log is joined again, as of its end.

Sessions are independent, so several workers may take a share of them each; the result is ordered
by time and does not depend on shares or batch sizes.
"""

import contextlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from zlib import crc32

import msgspec

from signals.decisions import Decisions
from signals.episode import revision_id, with_caps
from signals.intake import take
from signals.joiner import SETTLE_S, TOPICS, Joiner
from signals.review import Reviewer
from signals.state import State
from signals.trust.cap_state import Weighed
from tendril.log import EventLog, LogRecord, read_all, readable
from tendril.records import Episode
from tendril.settings import Settings

BATCH_RECORDS = 10_000


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
    records, until = read_all(log, TOPICS, batch_records), 0.0
    newest: dict[str, Episode] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        joiners: dict[int, Joiner] = {}
        decisions = stack.enter_context(closing(Decisions(log)))
        consents = decisions.poll()
        while batch := list(islice(records, batch_records)):
            until = max(until, *(record.appended_at for record in batch))
            mine = [r for r in batch if r.appended_at >= since and is_of(r.key, share)]
            for number in {record.partition for record in mine}:
                if number not in joiners:
                    state = stack.enter_context(closing(State(folder / f"{number}.db")))
                    tenants = settings.privacy.tenants
                    joiners[number] = Joiner(
                        state,
                        reviewer,
                        partition=number,
                        tenants=tenants,
                        decided=decisions.decided,
                    )
                    _step(joiners[number], [], consents=consents)
                here = [record for record in mine if record.partition == number]
                newest |= _step(joiners[number], here)
        until = max(until, decisions.decided.quarantines.newest_at)
        for joiner in joiners.values():
            newest |= _step(joiner, [], until=until)
    return in_order(newest.values())


def in_order(episodes: Iterable[Episode]) -> list[Episode]:
    """By the moment of the look, as a joiner makes them."""
    return sorted(episodes, key=lambda e: (e.closed_at, e.segments[0].trace_id))


def is_of(key: str, share: tuple[int, int]) -> bool:
    """Whether a session belongs to that share of the work."""
    return crc32(key.encode()) % share[1] == share[0]


def published(log: EventLog) -> dict[str, Episode]:
    """By trace, the newest episode on the log."""
    newest: dict[str, Episode] = {}
    for episode, _ in readable(read_all(log, [Episode.TOPIC]), Episode):
        newest[episode.segments[0].trace_id] = episode
    return newest


def recapped(replayed: Iterable[Episode], before: Mapping[str, Episode]) -> list[Episode]:
    """With what the caps left of each when it was taken in: a replay of a share cannot know."""
    return [
        with_caps(episode, Weighed(old.cap, old.capped_by, old.account_age_s))
        if (old := before.get(episode.segments[0].trace_id))
        else episode
        for episode in replayed
    ]


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
                episode_id=revision_id(trace_id, episode.recipe_digest, revision),
                supersedes=old.episode_id,
                previous_maturity=old.previous_maturity if old.quarantine_ids else old.maturity,
            )
        )
    return revised


def is_equal(one: Episode, other: Episode) -> bool:
    """Whether both say the same of a trace."""
    return (one.reward, one.weight, one.outcome, one.segments, one.quarantine_ids) == (
        other.reward, other.weight, other.outcome, other.segments, other.quarantine_ids,
    )  # fmt: skip


def _step(
    joiner: Joiner,
    records: Sequence[LogRecord],
    *,
    until: float | None = None,
    consents: Sequence[LogRecord] = (),
) -> dict[str, Episode]:
    """Take `records` in; `until`: there are no more, and what is due by then is looked at."""
    batch, at_end = take(records), until is not None
    now = (until or 0.0) + SETTLE_S
    while joiner.step(batch, now=now, caught_up=at_end, consents=consents):
        batch = take([])
    outgoing = joiner.take_outgoing()
    if outgoing:
        joiner.sent(outgoing[-1][0])
    episodes = [record for _, _, record in outgoing if isinstance(record, Episode)]
    return {episode.segments[0].trace_id: episode for episode in episodes}
