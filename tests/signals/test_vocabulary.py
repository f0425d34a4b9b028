"""Every feedback type is counted; those that the recipe does not know yet change no reward."""

import math
from typing import Any, get_args

import pytest

from signals.judge import judge
from signals.recipe import load_recipe
from tendril.records import FeedbackType
from tests.builders import make_feedback, make_trace
from tests.signals.streams import IN_MEMORY, join_all, make_records, open_joiner

WITHOUT_EFFECT = (
    "suggestion.suppressed", "tool.denied", "content.copied", "session.ended", "heartbeat",
    "consent.changed", "user.deletion_requested",
)  # fmt: skip
RECIPE = load_recipe(None)


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
@pytest.mark.parametrize("route", ["suggestion", "chat"])
@pytest.mark.parametrize("seq", [0, 2, 9])
def test_a_type_without_a_recipe_changes_no_reward(name: Any, route: str, seq: int) -> None:
    trace = make_trace(trace_id="t1", route=route)
    events = [
        make_feedback(event_id="a", client_seq=1),
        make_feedback(event_id="k", client_seq=3, type="retention.measured", value=0.4,
                      horizon_s=30.0),
    ]  # fmt: skip
    extra = make_feedback(event_id="x", client_seq=seq, type=name, value=-1.0, span=(0, 1))
    without = judge(RECIPE, trace, events, age_s=math.inf)
    assert without.reward is not None
    judgement = judge(RECIPE, trace, [*events, extra], age_s=math.inf)
    assert (judgement.reward, judgement.components) == (without.reward, without.components)
    assert judgement.credit == without.credit
    alone = judge(RECIPE, trace, [extra], age_s=math.inf)
    assert (alone.reward, alone.invalid_event_ids) == (None, ())


def test_retention_without_a_value_is_absent_not_zero() -> None:
    accepted = make_feedback(event_id="a", client_seq=1)
    measured = make_feedback(
        event_id="k", client_seq=2, type="retention.measured", horizon_s=30.0, reason="file_deleted"
    )
    judgement = judge(RECIPE, make_trace(), [accepted, measured], age_s=math.inf)
    assert (judgement.reward, judgement.invalid_event_ids) == (0.75, ())
    assert "retention" not in judgement.components


def test_every_type_meets_a_fate_and_what_names_no_trace_pays_none() -> None:
    joiner = open_joiner(IN_MEMORY)
    about_trace = [make_feedback(type=name, trace_id="t1") for name in get_args(FeedbackType)]
    lone: dict[str, Any] = {"trace_id": None, "type": "heartbeat"}
    about_session = [
        make_feedback(event_id="1", **lone),
        make_feedback(event_id="1", **lone),
        make_feedback(event_id="1", session_id="s2", **lone),
        make_feedback(event_id="1", user_key="u2", **lone),
    ]
    records = [(1.0, make_trace(trace_id="t1"))] + [(2.0, e) for e in about_trace + about_session]
    episodes = join_all(joiner, make_records(records))
    ledger = joiner.ledger(0.0)
    assert ledger.balanced
    assert list(episodes) == ["t1"]
    fates = ledger.outcomes["feedback"]
    assert (fates["no_trace"], fates["duplicate"], fates["pending"]) == (3, 1, 0)
    assert fates["joined"] + fates["invalid"] == len(about_trace)
