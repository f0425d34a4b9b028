"""The components of a chat turn, by value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.components.explicit import corrected
from tendril.records import Latency, ToolCall
from tests.builders import make_trace
from tests.signals.recipe.steps import RECIPE, Step, judged, kept, make_recipe

CHAT = make_trace(route="chat")
VOTE_DOWN = {"type": "feedback.vote", "value": -1.0}
WITH_TESTS = make_recipe(graders=[{"name": "pytest", "high": 10.0}])
MANDATORY = make_recipe(graders=[{"name": "pytest", "mandatory": True}])
REFUSALS = make_recipe(refusal={"grader": "refusal"})


def _follow(name, value=None):
    return {"type": "user.followed_up", "reason": name, "value": value}


def _grade(value=None, **fields):
    return {"type": "grader.scored", "grader": "pytest", "value": value} | fields


def _rated(value, low, high):
    return {"type": "feedback.rating", "value": value, "scale_min": low, "scale_max": high}


@pytest.mark.parametrize(
    ("name", "worth"),
    [("satisfied", 1.0), ("new_goal", 1.0), ("clarify", -0.3), ("rephrase", -0.6),
     ("wrong_or_revert", -1.0), ("neutral", None)],
)  # fmt: skip
def test_a_follow_up_is_worth_what_the_recipe_says_of_its_class(name, worth):
    assert judged(_follow(name, 0.123), trace=CHAT).reward == worth


def test_a_message_that_nothing_judged_leaves_an_earlier_class_standing():
    assert judged(_follow("clarify"), "user.followed_up", trace=CHAT).reward == -0.3
    assert judged(_follow("clarify"), _follow("neutral"), trace=CHAT).reward is None


@pytest.mark.parametrize(
    ("steps", "reward", "missing"),
    [
        ([_grade(10)], 1.0, ()),
        ([_grade(2)], -0.6, ()),
        ([_grade(2), _grade(10)], 1.0, ()),
        ([_grade(error="timeout")], None, ("grader_pytest",)),
        ([_grade(10), _grade(error="timeout")], None, ("grader_pytest",)),
        ([_grade(error="timeout"), _grade(10)], 1.0, ()),
        ([_grade(11)], None, ("grader_pytest",)),
        ([_grade(float("nan"))], None, ("grader_pytest",)),
        ([_grade(10, grader="unknown")], None, ()),
        ([], None, ()),
    ],
)
def test_a_grader_that_fails_is_missing_and_never_zero(steps, reward, missing):
    judgement = judged(*steps, trace=CHAT, recipe=WITH_TESTS)
    assert judgement.reward == (None if reward is None else pytest.approx(reward))
    assert judgement.missing == missing


@pytest.mark.parametrize("trace", [CHAT, make_trace()])
def test_without_its_mandatory_grader_a_trace_has_no_reward(trace):
    steps: list[Step] = ["suggestion.accepted", kept(30, 1.0)]
    waiting = judged(*steps, trace=trace, recipe=MANDATORY)
    assert (waiting.reward, waiting.outcome) == (None, "awaits_grader")
    assert "grader_pytest" in waiting.pending
    failed = judged(*steps, _grade(error="timeout"), trace=trace, recipe=MANDATORY)
    assert (failed.reward, failed.pending) == (None, ())
    assert "grader_pytest" in failed.missing
    assert judged(*steps, _grade(1), trace=trace, recipe=MANDATORY).reward is not None


def test_ratings_of_equal_meaning_are_equal_on_any_scale():
    for five, ten in ((1, 1), (3, 5.5), (5, 10), (4, 7.75)):
        on_five = judged(_rated(five, 1, 5), trace=CHAT)
        assert on_five.components == judged(_rated(ten, 1, 10), trace=CHAT).components
    assert judged(_rated(5, 1, 5), trace=CHAT).reward == pytest.approx(0.1)
    assert judged(_rated(3, 1, 5), trace=CHAT).reward == 0.0


@pytest.mark.parametrize(
    "rating", [_rated(4, None, None), _rated(6, 1, 5), _rated(3, 5, 1), _rated(1, 1, 1)]
)
def test_a_rating_on_an_unknown_scale_is_refused(rating):
    judgement = judged(rating, trace=CHAT)
    assert (judgement.reward, judgement.invalid_event_ids) == (None, ("e1",))


SHARES = st.floats(-1, 1, allow_nan=False)
BEHAVIOUR = st.dictionaries(
    st.sampled_from(["retention", "followed_up", "grader", "interrupted", "tool_calls"]), SHARES,
    min_size=1,
)  # fmt: skip
EXPLICIT = st.dictionaries(st.sampled_from(["vote", "rating"]), SHARES, min_size=1)


@given(behaviour=BEHAVIOUR, explicit=EXPLICIT)
def test_what_users_say_has_a_tenth_of_the_weight_and_turns_no_sign(behaviour, explicit):
    alone = corrected(RECIPE.chat, behaviour, {})
    both = corrected(RECIPE.chat, behaviour, explicit)
    assert alone is not None
    assert both is not None
    assert alone * both >= 0
    # Mean of a part of at most a tenth at distance <= 2 from the rest.
    assert abs(both - alone) <= 0.2 + 1e-12


@given(value=SHARES, explicit=EXPLICIT)
def test_no_vote_turns_the_sign_set_by_retention(value, explicit):
    both = corrected(RECIPE.chat, {"retention": value}, explicit)
    assert both is not None
    assert value * both >= 0


def test_a_vote_that_was_withdrawn_says_nothing():
    withdrawn = {"type": "feedback.vote", "value": 0.0}
    assert judged(VOTE_DOWN, withdrawn, trace=CHAT).reward is None
    up = {"type": "feedback.vote", "value": 1.0}
    assert judged(VOTE_DOWN, up, trace=CHAT).reward == pytest.approx(0.1)


def test_an_invalid_tool_call_is_a_negative_on_its_own_tokens():
    calls = (ToolCall(name="read", valid=True, tokens=(0, 1)),
             ToolCall(name=None, valid=False, tokens=(2, 3)))  # fmt: skip
    trace = make_trace(route="chat", tool_calls=calls)
    judgement = judged(_follow("satisfied"), trace=trace)
    assert judgement.components == {"followed_up": 1.0, "tool_calls": -0.5}
    reward = (0.25 - 0.05) / 0.35
    assert judgement.reward == pytest.approx(reward)
    # A third of the tokens wrote it: one third above the mean share, two thirds below for it.
    assert judgement.credit == pytest.approx([reward + 1 / 3, reward + 1 / 3, reward - 2 / 3])
    assert judgement.credit[2] < 0
    alone = judged(trace=trace)
    assert (alone.reward, alone.outcome) == (-0.5, "invalid_tool_call")


def test_without_a_place_the_tokens_that_show_nothing_are_blamed():
    trace = make_trace(
        route="chat", token_bytes=(5, 0, 0), tool_calls=(ToolCall(name="f", valid=False),)
    )
    credit = judged(trace=trace).credit
    assert credit[0] > credit[1] == credit[2]


def test_a_right_refusal_that_the_user_dislikes_is_masked():
    right = {"type": "grader.scored", "grader": "refusal", "value": 1.0}
    wrong = right | {"value": 0.0}
    disliked = judged(_follow("wrong_or_revert"), VOTE_DOWN, right, trace=CHAT, recipe=REFUSALS)
    assert (disliked.reward, disliked.outcome) == (None, "right_refusal")
    assert set(disliked.credit) == {0.0}
    assert judged(_follow("wrong_or_revert"), wrong, trace=CHAT, recipe=REFUSALS).reward == -1.0
    assert judged(_follow("satisfied"), right, trace=CHAT, recipe=REFUSALS).reward == 1.0


@pytest.mark.parametrize(("total_s", "cost"), [(2.0, 0.0), (3.0, 0.1), (4.0, 0.2), (99.0, 0.2)])
def test_waiting_costs_beyond_its_budget_where_the_recipe_weighs_it(total_s, cost):
    latency = Latency(queue_s=0.0, first_token_s=0.1, total_s=total_s)
    trace = make_trace(route="chat", latency=latency)
    slow = make_recipe(latency_s={"budget": 2.0, "weight": 0.2})
    assert judged(_follow("satisfied"), trace=trace, recipe=slow).reward == pytest.approx(1 - cost)
    assert judged(_follow("satisfied"), trace=trace).reward == 1.0
    assert judged(trace=trace, recipe=slow).reward is None  # nothing else is known


def test_rewards_are_cut_and_the_raw_one_is_kept():
    long = make_recipe(length_tokens={"budget": 1.0, "weight": 0.5})
    judgement = judged(_follow("wrong_or_revert"), trace=CHAT, recipe=long)
    assert (judgement.reward, judgement.raw_reward) == (-1.0, -1.5)
    assert sum(judgement.credit) / 3 == pytest.approx(-1.0, abs=1e-12)
