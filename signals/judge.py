"""Judges one trace by a recipe: a pure function of the trace and of what people did about it.

None is unknown (nothing usable was observed), 0.0 is neutral; the two are never mixed up.
"""

import math
from collections.abc import Sequence

import msgspec

from signals.centring import bucket_of
from signals.components.budgets import costs
from signals.components.chat import chat_parts
from signals.components.completion import completion_parts
from signals.components.grader import grades_of, says_refusal_was_right
from signals.components.parts import Absence, Absent, Parts
from signals.components.retention import Moment
from signals.components.tool_calls import blamed_tokens, tool_call_value
from signals.credit import kept_shares, token_credit
from signals.edit import CHAT_PLACES, COMPLETION_PLACES
from signals.learned.rows import features_of
from signals.outcome import Outcome, fold
from signals.recipe import Recipe
from signals.spans import Span, merged, num_bytes, without
from tendril.records import Feedback, Trace


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A trace's reward, how it came about, and each token's part of it."""

    reward: float | None
    """In [-1, 1]."""
    raw_reward: float | None = None
    """Before it was cut to [-1, 1]."""
    weight: float = 1.0
    components: dict[str, float]
    """What the reward is made of; what was not observed is absent."""
    outcome: str
    accepted_bytes: int = 0
    """Bytes the user took and did not undo."""
    shown_bytes: int
    credit: tuple[float, ...]
    """[T]; zeros where the reward is unknown."""
    feedback_at: float | None
    invalid_event_ids: tuple[str, ...] = ()
    """Events that were impossible in their state and counted for nothing."""
    pending: tuple[str, ...] = ()
    """What is left out because it is not due yet: later judgements may differ by it."""
    censored: tuple[str, ...] = ()
    """What can no longer be observed."""
    missing: tuple[str, ...] = ()
    """What was due and did not come."""
    bucket: str = ""
    """Surface and language, among whose rewards this one is centred."""


def judge(
    recipe: Recipe,
    trace: Trace,
    events: Sequence[Feedback],
    *,
    age_s: float,
    skew_s: float = 0.0,
) -> Judgement:
    """The trace's reward under `recipe`, given its events in any order, free of repeats.

    `age_s`: seconds since the trace completed, infinite at the end. `skew_s`: to be added to the
    session's client times.
    """
    if trace.suppressed:
        return _suppressed(trace, events)
    shown_bytes = sum(trace.token_bytes)
    places = CHAT_PLACES if trace.route == "chat" else COMPLETION_PLACES
    outcome = fold(events, shown_bytes=shown_bytes, places=places)
    parts = _parts(recipe, outcome, Moment(trace, age_s, skew_s, outcome.ended_by), shown_bytes)
    components, raw = parts.components, parts.reward
    if raw is not None and recipe.learned is not None and age_s < math.inf:
        known = features_of(
            components, latency_s=trace.latency.total_s, num_tokens=len(trace.token_bytes)
        )
        raw = recipe.learned.reward(known)
    if raw is not None and (cost := costs(recipe, trace)):
        components, raw = components | cost, math.fsum((raw, *cost.values()))
    reward = None if raw is None else max(-1.0, min(1.0, raw))
    accepted = _accepted_spans(outcome, shown_bytes)
    return Judgement(
        reward=reward,
        raw_reward=raw,
        weight=parts.weight,
        components=components,
        outcome=parts.outcome,
        accepted_bytes=num_bytes(accepted),
        shown_bytes=shown_bytes,
        credit=_credit(recipe, trace, outcome, reward, accepted),
        feedback_at=outcome.feedback_at,
        invalid_event_ids=tuple(outcome.invalid),
        pending=_names(parts.absent, "pending"),
        censored=_names(parts.absent, "censored"),
        missing=_names(parts.absent, "missing"),
        bucket=bucket_of(outcome.surface or trace.route),
    )


def _parts(recipe: Recipe, outcome: Outcome, moment: Moment, shown_bytes: int) -> Parts:
    """The route's verdict, unless a grader has the last word."""
    grades = grades_of(recipe.graders, outcome.grades)
    if moment.trace.route == "chat":
        parts = chat_parts(recipe, outcome, moment, grades)
    elif shown_bytes == 0:
        parts = Parts(outcome="not_exposed", reward=None)
    else:
        parts = completion_parts(recipe, outcome, moment)
    name, reward = parts.outcome, parts.reward
    if grades.lacks_mandatory:
        name, reward = "awaits_grader", None
    elif (
        reward is not None and reward < 0 and says_refusal_was_right(recipe.refusal, outcome.grades)
    ):
        name, reward = "right_refusal", None
    elif not grades.absent:
        return parts
    return msgspec.structs.replace(
        parts, outcome=name, reward=reward, absent=parts.absent + grades.absent
    )


def _suppressed(trace: Trace, events: Sequence[Feedback]) -> Judgement:
    """Silence is worth exactly 0, and no event can be about what was not shown."""
    return Judgement(
        reward=0.0,
        raw_reward=0.0,
        components={"suppressed": 0.0},
        outcome="suppressed",
        shown_bytes=0,
        credit=(0.0,) * len(trace.token_bytes),
        feedback_at=None,
        invalid_event_ids=tuple(sorted(event.event_id for event in events)),
        bucket=bucket_of(trace.route),
    )


def _accepted_spans(outcome: Outcome, shown_bytes: int) -> tuple[Span, ...]:
    """Bytes of the shown text that were accepted and not undone.

    An only edit that was accepted in whole, without saying where it was, is all of the text.
    """
    if not outcome.edits:
        return ()
    standing = [edit for edit in outcome.edits.values() if edit.is_accepted and not edit.undone_by]
    if len(outcome.edits) == 1 and standing and standing[0].span is None:
        return merged([(0, shown_bytes)])
    declined = [
        edit.decision.span
        for edit in outcome.edits.values()
        if edit.decision is not None and edit.decision.span and edit not in standing
    ]
    return without(merged(edit.span for edit in standing if edit.span), declined)


def _credit(
    recipe: Recipe,
    trace: Trace,
    outcome: Outcome,
    reward: float | None,
    accepted: tuple[Span, ...],
) -> tuple[float, ...]:
    """[T] what each token earned: its mean is the reward. Bytes that the user changed are lost."""
    if reward is None:
        return (0.0,) * len(trace.token_bytes)
    changed = [span for edit in outcome.edits.values() for span in edit.changed]
    return token_credit(
        reward,
        kept_shares(trace.token_bytes, without(accepted, changed)),
        recipe.credit.token_spread,
        blamed_T=blamed_tokens(trace) if tool_call_value(trace) is not None else (),
        blame=recipe.credit.invalid_call_spread,
    )


def _names(absent: Absent, why: Absence) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name, reason in absent if reason == why)) if absent else ()
