"""Chat and agent turns: the weighted mean of the components that were observed (anchors 3)."""

from signals.components.explicit import corrected, explicit_components
from signals.components.grader import Grades
from signals.components.parts import Absence, Absent, Parts, weighted_mean
from signals.components.retention import Moment, retention_of
from signals.components.talk import follow_up_value
from signals.components.tool_calls import tool_call_value
from signals.edit import Edit, shares
from signals.outcome import Outcome
from signals.recipe import Recipe


def chat_parts(recipe: Recipe, outcome: Outcome, moment: Moment, grades: Grades) -> Parts:
    """The verdict on a turn. Without a component it is unknown, never 0."""
    kept, absent = _kept_share(recipe, outcome, moment)
    observed = {
        "retention": None if kept is None else 2 * kept - 1,
        "followed_up": follow_up_value(recipe.followed_up, outcome.followed_up),
        "grader": grades.score,
        "interrupted": -1.0 if outcome.regenerated or outcome.stopped else None,
        "tool_calls": tool_call_value(moment.trace),
    }
    behaviour = {name: value for name, value in observed.items() if value is not None}
    explicit = explicit_components(outcome)
    return Parts(
        outcome=_name(outcome, behaviour, explicit),
        reward=corrected(recipe.chat, behaviour, explicit),
        components=behaviour | explicit,
        absent=absent,
    )


def _kept_share(recipe: Recipe, outcome: Outcome, moment: Moment) -> tuple[float | None, Absent]:
    """Over edits and hunks, by the characters each offered; None if nothing was observed."""
    observed: list[tuple[float, float]] = []
    absent: dict[str, Absence] = {}
    if not outcome.edits:
        return None, ()
    for size, edit in zip(shares(outcome.edits), outcome.edits.values(), strict=True):
        share, unknown = _kept_of(recipe, edit, moment)
        if share is not None:
            observed.append((size, share))
        absent |= dict(unknown)
    return weighted_mean(observed), tuple(absent.items())


def _kept_of(recipe: Recipe, edit: Edit, moment: Moment) -> tuple[float | None, Absent]:
    """Of a rejected edit nothing is kept; of an accepted one all, until measured.

    An ignored one says nothing, nor does text that an application put in place unasked until it
    is measured.
    """
    if edit.decision is not None and edit.placed_by is None:
        return None if edit.decision.type == "suggestion.ignored" else 0.0, ()
    retention = retention_of(recipe.retention, edit, moment)
    if not edit.is_accepted:
        return retention.kept, retention.absent
    return edit.share * (1.0 if retention.kept is None else retention.kept), retention.absent


def _name(outcome: Outcome, behaviour: dict[str, float], explicit: dict[str, float]) -> str:
    """What says most about how a turn ended."""
    edits = outcome.edits.values()
    for is_so, name in (
        (outcome.regenerated, "regenerated"),
        (outcome.stopped, "stopped"),
        (any(edit.undone_by for edit in edits), "undone"),
        ("retention" in behaviour, "measured"),
        ("followed_up" in behaviour, "followed_up"),
        ("grader" in behaviour, "graded"),
        ("tool_calls" in behaviour, "invalid_tool_call"),
        ("vote" in explicit, "voted"),
        ("rating" in explicit, "rated"),
    ):
        if is_so:
            return name
    return "unknown"
