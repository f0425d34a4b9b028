"""Completions: reward = f * k - t - u, and whether anybody saw them.

f: accepted share of what was shown; k: retention; t: the cost of showing; u: the cost of an undo
within seconds. Sources: anchors 3; t from an editor's threshold rule (anchors 1.2).
"""

from typing import NamedTuple

from signals.components.parts import Absent, Parts, weighted_mean
from signals.components.retention import Moment, retention_of, undone_after_s
from signals.durations import duration_s
from signals.edit import Edit, shares
from signals.outcome import Outcome
from signals.recipe import Recipe
from tendril.records import Feedback

REPLACED = frozenset({"replaced", "superseded"})
CONTINUED = frozenset({"continued"})
"""The user typed on and the next suggestion said the same: no verdict on this one."""


class _One(NamedTuple):
    """One edit's outcome, reward and components; `kept` None: not observed."""

    outcome: str
    reward: float
    weight: float = 1.0
    accepted_share: float | None = None
    kept: float | None = None
    undo: float | None = None
    absent: Absent = ()


def completion_parts(recipe: Recipe, outcome: Outcome, moment: Moment) -> Parts:
    """The verdict on a shown suggestion; several edits are combined by what each offered."""
    seen = not _is_unseen(recipe, outcome, moment.skew_s)
    weights = shares(outcome.edits) if outcome.edits else []
    scored = [
        (weight, one)
        for weight, edit in zip(weights, outcome.edits.values(), strict=True)
        if (one := _one(recipe, outcome, edit, moment, seen=seen))
    ]
    if scored:
        return _combined(recipe, scored)
    if outcome.shown_by is None and not any(edit.decision for edit in outcome.edits.values()):
        return Parts(outcome="unknown", reward=None)
    if not seen:
        return Parts(outcome="not_exposed", reward=None)
    if not _is_overdue(recipe, outcome.shown_by, moment):
        return Parts(outcome="unknown", reward=None, absent=(("decision", "pending"),))
    return _combined(recipe, [(1.0, _ignored(recipe))])


def _one(
    recipe: Recipe, outcome: Outcome, edit: Edit, moment: Moment, *, seen: bool
) -> _One | None:
    """None: this edit says nothing."""
    if edit.placed_by is not None:
        return _accepted(recipe, edit, moment)
    if not seen:
        return None
    if edit.decision is None:
        shown_by = outcome.shown_by if edit.shown else None
        return _ignored(recipe) if _is_overdue(recipe, shown_by, moment) else None
    if edit.decision.type == "suggestion.ignored":
        return _ignored(recipe)
    return _One("rejected", -recipe.completion.threshold)


def _ignored(recipe: Recipe) -> _One:
    return _One("ignored", -recipe.completion.threshold, recipe.completion.ignored_weight)


def _accepted(recipe: Recipe, edit: Edit, moment: Moment) -> _One:
    """An acceptance, in whole or in part, perhaps undone.

    Without one observed horizon k is 1 and the component stays absent: a loss was not seen, and a
    client that cannot measure must not turn its users' acceptances into rejections.
    """
    figures = recipe.completion
    undone_s = undone_after_s(edit, moment.skew_s)
    if undone_s is not None and undone_s <= figures.undo_within_s:
        reward = -figures.threshold - figures.undo_penalty
        return _One("undone", reward, 1.0, edit.share, None, -figures.undo_penalty)
    retention = retention_of(recipe.retention, edit, moment)
    kept, otherwise = retention.kept, 1.0
    name = "accepted" if edit.share == 1.0 else "accepted_partially"
    if edit.undone_by is not None:
        name, otherwise = "undone", 0.0
    reward = edit.share * (otherwise if kept is None else kept) - figures.threshold
    return _One(name, reward, 1.0, edit.share, kept, None, retention.absent)


def _combined(recipe: Recipe, scored: list[tuple[float, _One]]) -> Parts:
    """Means over edits by size, an ignored one counting less; components where observed."""
    [(size, first), *others] = scored
    if not others and size == 1 and first.weight > 0:
        return _alone(recipe, first)
    weighed = [(size * one.weight, one) for size, one in scored]
    components = {
        name: mean
        for name, values in (
            ("accepted_share", [(w, one.accepted_share) for w, one in weighed]),
            ("retention", [(w, one.kept) for w, one in weighed]),
            ("undo", [(w, one.undo) for w, one in weighed]),
        )
        if (mean := weighted_mean((w, v) for w, v in values if v is not None)) is not None
    }
    total = sum(size for size, _ in scored)
    return Parts(
        outcome=_name([one.outcome for _, one in scored]),
        reward=weighted_mean((weight, one.reward) for weight, one in weighed),
        weight=sum(weight for weight, _ in weighed) / total if total > 0 else 1.0,
        components=components | {"threshold": -recipe.completion.threshold},
        absent=tuple(dict.fromkeys(entry for _, one in scored for entry in one.absent)),
    )


def _alone(recipe: Recipe, one: _One) -> Parts:
    """Of one edit the means are its own figures."""
    observed = (("accepted_share", one.accepted_share), ("retention", one.kept), ("undo", one.undo))
    components = {name: value for name, value in observed if value is not None}
    components["threshold"] = -recipe.completion.threshold
    return Parts(
        outcome=one.outcome,
        reward=one.reward,
        weight=one.weight,
        components=components,
        absent=one.absent,
    )


def _name(names: list[str]) -> str:
    """Of edits with the same outcome that, of others what says most."""
    if len(set(names)) == 1:
        return names[0]
    if "accepted" in names or "accepted_partially" in names:
        return "accepted_partially"
    return "undone" if "undone" in names else "rejected"


def _is_unseen(recipe: Recipe, outcome: Outcome, skew_s: float) -> bool:
    """Nobody reads in `min_visible_ms`; a replaced or continued suggestion asked nobody."""
    figures, visible_ms = recipe.completion, outcome.visible_ms
    if visible_ms is not None and visible_ms < figures.min_visible_ms:
        return True
    for edit in outcome.edits.values():
        if edit.decision is None or edit.decision.type != "suggestion.ignored":
            continue
        if edit.decision.reason in CONTINUED:
            return True
        if edit.decision.reason in REPLACED:
            lasted_ms = _visible_ms(visible_ms, outcome.shown_by, edit.decision, skew_s)
            return lasted_ms is None or lasted_ms < figures.replaced_within_ms
    return False


def _visible_ms(
    visible_ms: float | None, shown_by: Feedback | None, gone_by: Feedback, skew_s: float
) -> float | None:
    if visible_ms is not None or shown_by is None:
        return visible_ms
    lasted_s = duration_s(shown_by, gone_by, skew_s=skew_s)
    return None if lasted_s is None else 1_000 * lasted_s


def _is_overdue(recipe: Recipe, shown_by: Feedback | None, moment: Moment) -> bool:
    """Whether a decision would have come by now."""
    if shown_by is None:
        return False
    return moment.age_s >= moment.seconds_to(shown_by) + recipe.completion.ignored_after_s
