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
from signals.decisions import Decided
from signals.episode import build_episode, is_held_out, with_caps, with_fits
from signals.fitted import NO_FITS, FitsInUse
from signals.judge import Judgement, judge
from signals.recipe import Recipe
from signals.schedule import Schedule
from signals.state import OpenTrace, StoredEvent
from signals.trust.cap_state import UNCAPPED
from tendril.quarantine import Quarantines, Subject
from tendril.records import MATURITIES, Episode, Feedback, Graded, Maturity, Trace, decode

NEVER_FREE = 255


class Verdict(NamedTuple):
    """What a look at a trace has found."""

    episode: Episode | None
    """None: nothing new to say."""
    judged: bytes | None
    """Fingerprint of what was said, now or before."""
    fates: Sequence[tuple[StoredEvent, Fate]]
    """Of every event that was logged before this moment."""
    is_held: bool
    """A quarantine keeps it from training."""


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
        decided: Decided,
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
        graded = graded_by([event for _, event in usable])
        held_by = holders(decided.quarantines, trace, graded, opened.due_at)
        judged = fingerprint(
            judgement, held_by, self.schedule.maturity(opened.stage), opened.judged
        )
        if not self._is_news(opened, judgement, judged):
            return Verdict(None, opened.judged, fates, bool(held_by))
        return Verdict(
            self._episode(
                opened, trace, judgement, graded, held_by, decided.fits.at(opened.due_at)
            ),
            judged,
            fates,
            bool(held_by),
        )

    def is_held(
        self, opened: OpenTrace, trace: Trace, stored: Sequence[StoredEvent], decided: Decided
    ) -> bool:
        """Whether a quarantine holds the trace at `opened.due_at`."""
        if not decided.quarantines.num_taken:
            return False
        graded = graded_by([decode(Feedback, event.value) for event in stored])
        return bool(holders(decided.quarantines, trace, graded, opened.due_at))

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
        return judge(self.recipe, trace, events, age_s=self._age_s(opened), skew_s=skew_s)

    def _age_s(self, opened: OpenTrace) -> float:
        """Infinite at the end of the window."""
        is_early = opened.stage < self.schedule.final_stage
        return self.schedule.looks_s[opened.stage] if is_early else inf

    def _is_news(self, opened: OpenTrace, judgement: Judgement, judged: bytes) -> bool:
        """Early looks speak where they know something, the end always, latecomers by a change."""
        if opened.stage == self.schedule.final_stage:
            return True
        knows = judgement.reward is not None or opened.revision > 0
        return knows and judged != opened.judged

    def _episode(
        self,
        opened: OpenTrace,
        trace: Trace,
        judgement: Judgement,
        graded: tuple[Graded, ...],
        held_by: tuple[str, ...],
        fits: FitsInUse,
    ) -> Episode:
        episode = build_episode(
            trace,
            judgement,
            recipe_digest=self.recipe_digest,
            closed_at=opened.due_at,
            held_out=is_held_out(trace.session_id, self.held_out_share),
            revision=opened.revision,
            supersedes=opened.episode_id,
            maturity=self.schedule.maturity(opened.stage),
            previous_maturity=trainable_maturity(opened.judged),
            graded=graded,
            quarantine_ids=held_by,
        )
        if opened.caps != UNCAPPED:
            episode = with_caps(episode, opened.caps)
        return with_fits(episode, fits, self._age_s(opened)) if fits is not NO_FITS else episode


def graded_by(events: Sequence[Feedback]) -> tuple[Graded, ...]:
    """All scores: which of them counts is the recipe's business, an outage puts all in doubt."""
    scored = [event for event in events if event.type == "grader.scored"]
    if not scored:
        return ()
    scores = {(f"{e.grader}@{e.grader_version}", e.ingested_at) for e in scored}
    return tuple(Graded(grader=grader, at=at) for grader, at in sorted(scores))


def holders(
    quarantines: Quarantines, trace: Trace, graded: tuple[Graded, ...], as_of: float
) -> tuple[str, ...]:
    """Ids of the quarantines that hold a trace with these scores back."""
    if not quarantines.num_taken:
        return ()
    found = quarantines.of(Subject.of(trace)._replace(graded=graded), as_of=as_of)
    return tuple(record.quarantine_id for record in found)


def fingerprint(
    judgement: Judgement, held_by: tuple[str, ...], maturity: Maturity, before: bytes | None
) -> bytes:
    """64 bits that change with the judgement and what holds it, and the maturities of this look
    and of the newest that nothing held (each a byte; `before`: the look before)."""
    content = (
        judgement.reward, judgement.weight, judgement.outcome, judgement.accepted_bytes,
        judgement.components, judgement.credit, held_by,
    )  # fmt: skip
    digest = blake2b(msgspec.msgpack.encode(content), digest_size=8).digest()
    now = MATURITIES.index(maturity)
    free = now if not held_by else before[-1] if before else NEVER_FREE
    return digest + bytes([now, free])


def trainable_maturity(judged: bytes | None) -> Maturity | None:
    """Of the newest look that nothing held; None without any."""
    return MATURITIES[judged[-1]] if judged and judged[-1] != NEVER_FREE else None
