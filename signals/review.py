"""Looks at one trace at one moment of its schedule: which feedback counts, what it is worth.

Pure: the same trace, feedback and moment give the same verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import NamedTuple

import msgspec

from signals.clocks import event_time, session_skew_s
from signals.counts import Fate
from signals.episode import build_episode, is_held_out
from signals.judge import Judgement, judge
from signals.recipe import Recipe
from signals.schedule import Schedule
from signals.state import OpenTrace, StoredEvent
from tendril.records import MATURITIES, Episode, Feedback, Maturity, Trace, decode


class Verdict(NamedTuple):
    """What a look at a trace has found."""

    episode: Episode | None
    """None: nothing new to say."""
    judged: bytes | None
    """Fingerprint of what was said, now or before."""
    fates: Sequence[tuple[StoredEvent, Fate]]
    """Of every event that was logged before this moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewer:
    """How traces are judged, and when."""

    recipe: Recipe
    recipe_digest: str
    schedule: Schedule
    held_out_share: float

    def review(
        self,
        opened: OpenTrace,
        trace: Trace,
        stored: Sequence[StoredEvent],
        heartbeats_s: Sequence[float],
    ) -> Verdict:
        """`stored`: the events logged before `opened.due_at`; `heartbeats_s`: see `clocks`."""
        pairs = [(event, decode(Feedback, event.value)) for event in stored]
        skew_s = session_skew_s(heartbeats_s, [event for _, event in pairs])
        ends_at = opened.appended_at + self.schedule.window_s
        fates: list[tuple[StoredEvent, Fate]] = []
        usable: list[tuple[StoredEvent, Feedback]] = []
        for kept, event in pairs:
            happened_at = event_time(event, skew_s) if kept.appended_at >= ends_at else -inf
            fate = self._misfortune(kept, event, opened, trace, happened_at)
            if fate:
                fates.append((kept, fate))
            else:
                usable.append((kept, event))
        judgement = self._judge(opened, trace, [event for _, event in usable], skew_s)
        invalid = set(judgement.invalid_event_ids)
        fates += [
            (kept, "invalid" if event.event_id in invalid else "joined") for kept, event in usable
        ]
        judged = fingerprint(judgement, self.schedule.maturity(opened.stage))
        if not self._is_news(opened, judgement, judged):
            return Verdict(None, opened.judged, fates)
        return Verdict(self._episode(opened, trace, judgement), judged, fates)

    def _misfortune(
        self,
        kept: StoredEvent,
        event: Feedback,
        opened: OpenTrace,
        trace: Trace,
        happened_at: float,
    ) -> Fate | None:
        """Why an event that names the trace does not count for it; None if it does."""
        if trace.suppressed or (event.session_id, event.tenant) != (trace.session_id, trace.tenant):
            return "invalid"
        if happened_at >= opened.appended_at + self.schedule.window_s:
            return "late"
        if kept.appended_at + self.schedule.window_s <= opened.appended_at:
            return "orphan"
        return None

    def _judge(
        self, opened: OpenTrace, trace: Trace, events: Sequence[Feedback], skew_s: float
    ) -> Judgement:
        stage, schedule = opened.stage, self.schedule
        age_s = inf if stage >= schedule.final_stage else schedule.looks_s[stage]
        return judge(self.recipe, trace, events, age_s=age_s, skew_s=skew_s)

    def _is_news(self, opened: OpenTrace, judgement: Judgement, judged: bytes) -> bool:
        """Early looks speak where they know something, the end always, latecomers by a change."""
        if opened.stage == self.schedule.final_stage:
            return True
        knows = judgement.reward is not None or opened.revision > 0
        return knows and judged != opened.judged

    def _episode(self, opened: OpenTrace, trace: Trace, judgement: Judgement) -> Episode:
        return build_episode(
            trace,
            judgement,
            recipe_digest=self.recipe_digest,
            closed_at=opened.due_at,
            held_out=is_held_out(trace.session_id, self.held_out_share),
            revision=opened.revision,
            supersedes=opened.episode_id,
            maturity=self.schedule.maturity(opened.stage),
            previous_maturity=MATURITIES[opened.judged[-1]] if opened.judged else None,
        )


def fingerprint(judgement: Judgement, maturity: Maturity) -> bytes:
    """64 bits that change when the judgement does, and how mature it is as the last byte."""
    content = (
        judgement.reward, judgement.weight, judgement.outcome, judgement.accepted_bytes,
        judgement.components, judgement.credit,
    )  # fmt: skip
    digest = blake2b(msgspec.msgpack.encode(content), digest_size=8).digest()
    return digest + bytes([MATURITIES.index(maturity)])
