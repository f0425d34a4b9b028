"""Judges one trace by a recipe: a pure function of the trace and of what people did about it.

None is unknown (nothing usable was observed), 0.0 is neutral; the two are never mixed up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from signals.credit import kept_shares, token_credit
from signals.outcome import CHAT_PLACES, COMPLETION_PLACES, Outcome, fold
from signals.recipe import ChatRecipe, Recipe
from tendril.records import Feedback, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A trace's reward, how it came about, and each token's part of it."""

    reward: float | None
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


def judge(
    recipe: Recipe, trace: Trace, events: Sequence[Feedback], *, window_closed: bool
) -> Judgement:
    """The trace's reward under `recipe`, given its events in any order, free of repeats.

    While the window is open, a reward that later events could still change is None.
    """
    shown_bytes = sum(trace.token_bytes)
    if trace.suppressed:
        return _suppressed(trace, events)
    places = CHAT_PLACES if trace.route == "chat" else COMPLETION_PLACES
    outcome = fold(events, shown_bytes=shown_bytes, places=places)
    if trace.route == "chat":
        name, reward, components = _chat(recipe, outcome, window_closed)
    elif shown_bytes == 0:
        name, reward, components = "not_exposed", None, {}
    else:
        name, reward, components = _completion(recipe, outcome, window_closed)
    standing = outcome.span if outcome.undone_by is None else None
    credit = (0.0,) * len(trace.token_bytes)
    if reward is not None:
        reward = max(-1.0, min(1.0, reward))
        kept_T = kept_shares(trace.token_bytes, standing)
        credit = token_credit(reward, kept_T, recipe.credit.token_spread)
    return Judgement(
        reward=reward,
        weight=recipe.completion.ignored_weight if name == "ignored" else 1.0,
        components=components,
        outcome=name,
        accepted_bytes=standing[1] - standing[0] if standing else 0,
        shown_bytes=shown_bytes,
        credit=credit,
        feedback_at=outcome.feedback_at,
        invalid_event_ids=tuple(outcome.invalid),
    )


def _suppressed(trace: Trace, events: Sequence[Feedback]) -> Judgement:
    """Silence is worth exactly 0, and no event can be about what was not shown."""
    return Judgement(
        reward=0.0,
        components={"suppressed": 0.0},
        outcome="suppressed",
        shown_bytes=0,
        credit=(0.0,) * len(trace.token_bytes),
        feedback_at=None,
        invalid_event_ids=tuple(sorted(event.event_id for event in events)),
    )


_Parts = tuple[str, float | None, dict[str, float]]


def _completion(recipe: Recipe, outcome: Outcome, window_closed: bool) -> _Parts:
    """Outcome name, reward f * k - t - u, and components of a shown suggestion."""
    figures = recipe.completion
    if outcome.placed_by is not None:
        return _accepted(recipe, outcome, window_closed)
    if outcome.decision is None and not (outcome.shown and window_closed):
        return "unknown", None, {}
    if outcome.visible_ms is not None and outcome.visible_ms < figures.min_visible_ms:
        return "not_exposed", None, {}
    name = "rejected" if outcome.decision == "suggestion.rejected" else "ignored"
    return name, -figures.threshold, {"threshold": -figures.threshold}


def _accepted(recipe: Recipe, outcome: Outcome, window_closed: bool) -> _Parts:
    """An acceptance, in whole or in part, perhaps undone.

    Without one retention measurement by the window's end k is 1 and the component stays absent:
    retention is censored, not zero. The acceptance was seen, a loss was not, and a client that
    cannot measure must not turn its users' acceptances into rejections. Readers count the absence.
    """
    figures, share = recipe.completion, outcome.share
    components = {"accepted_share": share, "threshold": -figures.threshold}
    undone_after_s = outcome.undone_after_s
    if undone_after_s is not None and undone_after_s <= figures.undo_within_s:
        components |= {"undo": -figures.undo_penalty}
        return "undone", -figures.threshold - figures.undo_penalty, components
    if undone_after_s is not None:
        name = "undone"
    else:
        name = "accepted" if share == 1.0 else "accepted_partially"
    if not window_closed and _awaits_retention(recipe, outcome):
        return name, None, components
    kept = mean_retention(recipe, outcome)
    if kept is not None:
        components |= {"retention": kept}
    elif undone_after_s is None:
        kept = 1.0
    return name, share * (kept or 0.0) - figures.threshold, components


def mean_retention(recipe: Recipe, outcome: Outcome) -> float | None:
    """Weighted mean over the recipe's observed horizons; None if none was observed.

    An undo that stands is an observation too: from then on nothing is kept.
    """
    undone_after_s = outcome.undone_after_s
    weights, kept = [], []
    for horizon in recipe.retention:
        if undone_after_s is not None and undone_after_s <= horizon.horizon_s:
            weights.append(horizon.weight)
            kept.append(0.0)
        elif horizon.horizon_s in outcome.retention:
            weights.append(horizon.weight)
            kept.append(horizon.weight * outcome.retention[horizon.horizon_s])
    return math.fsum(kept) / math.fsum(weights) if weights else None


def _awaits_retention(recipe: Recipe, outcome: Outcome) -> bool:
    return any(horizon.horizon_s not in outcome.retention for horizon in recipe.retention)


def _chat(recipe: Recipe, outcome: Outcome, window_closed: bool) -> _Parts:
    """Outcome name, weighted mean of the observed components, and those components."""
    components: dict[str, float] = {}
    kept = mean_retention(recipe, outcome)
    if kept is not None:
        components["retention"] = 2 * kept - 1
    if outcome.followed_up is not None:
        components["followed_up"] = outcome.followed_up
    if outcome.regenerated or outcome.stopped:
        components["interrupted"] = -1.0
    reward = _mean_with_vote(recipe.chat, components, outcome.vote) if window_closed else None
    if outcome.vote is not None:
        components["vote"] = outcome.vote
    return _chat_name(outcome, components), reward, components


def _mean_with_vote(
    weights: ChatRecipe, components: dict[str, float], vote: float | None
) -> float | None:
    """The weighted mean of `components`, corrected by a vote that may not turn its sign.

    The vote's weight is capped to its share of what is present, so behaviour always decides.
    """
    present = {name: getattr(weights, name) for name in components}
    total = math.fsum(present.values())
    if total == 0:
        return None if vote is None else vote * weights.vote_alone
    weighted = math.fsum(present[name] * value for name, value in components.items())
    if vote is None:
        return weighted / total
    cap = weights.max_vote_share / (1 - weights.max_vote_share) * total
    vote_weight = min(weights.vote, cap)
    corrected = (weighted + vote_weight * vote) / (total + vote_weight)
    return 0.0 if weighted * corrected < 0 else corrected


def _chat_name(outcome: Outcome, components: dict[str, float]) -> str:
    """What says most about how a reply ended."""
    if outcome.regenerated:
        return "regenerated"
    if outcome.stopped:
        return "stopped"
    if outcome.undone_by is not None:
        return "undone"
    for component, name in (("retention", "measured"), ("followed_up", "followed_up")):
        if component in components:
            return name
    return "voted" if outcome.vote is not None else "unknown"
