"""Short ways to say what a user did, and what it was worth."""

import math
from typing import Any

import msgspec

from signals.judge import Judgement, judge
from signals.recipe import Recipe, load_recipe
from tendril.records import Feedback, Trace
from tests.builders import make_feedback, make_trace

RECIPE = load_recipe(None)
SHOWN, ACCEPTED, REJECTED = "suggestion.shown", "suggestion.accepted", "suggestion.rejected"
UNDONE, REDONE = "edit.undone", "edit.redone"
Step = str | dict[str, Any]


def make_events(*steps: Step) -> list[Feedback]:
    """Events e1, e2, ... one second apart, in order; a step is a type or fields that override."""
    events = []
    for seq, step in enumerate(steps, start=1):
        fields = {"type": step} if isinstance(step, str) else step
        times = {"client_seq": seq, "client_time": 1_000.0 + seq, "ingested_at": 1_000.5 + seq}
        events.append(make_feedback(**({"event_id": f"e{seq}"} | times | fields)))
    return events


def judged(
    *steps: Step,
    trace: Trace | None = None,
    recipe: Recipe = RECIPE,
    age_s: float = math.inf,
    skew_s: float = 0.0,
) -> Judgement:
    return judge(recipe, trace or make_trace(), make_events(*steps), age_s=age_s, skew_s=skew_s)


def kept(horizon_s: float, value: float | None = None, **fields: Any) -> dict[str, Any]:
    return {"type": "retention.measured", "horizon_s": horizon_s, "value": value} | fields


def make_recipe(**changes: dict[str, Any] | list[Any]) -> Recipe:
    """The default recipe with tables changed by key: `chat={"vote": 0.0}`, `graders=[...]`."""
    content = msgspec.to_builtins(RECIPE)
    for table, values in changes.items():
        content[table] = content[table] | values if isinstance(values, dict) else values
    return msgspec.convert(content, Recipe)
