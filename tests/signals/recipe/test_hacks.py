"""Ways in which a policy could look better without being so: each is worth less (anchors 4.2)."""

from statistics import fmean

import pytest

from signals.components.action_mix import action_mix, action_of
from signals.edit import CHAT_PLACES
from signals.outcome import fold
from tendril.records import ToolCall
from tests.builders import make_trace
from tests.signals.recipe.steps import ACCEPTED, REJECTED, judged, kept, make_events
from tests.signals.streams import make_silence

CHAT = make_trace(route="chat")
UP = {"type": "feedback.vote", "value": 1.0}


def _reward(*steps, trace=CHAT):
    reward = judged(*steps, trace=trace).reward
    assert reward is not None
    return reward


def _said(name):
    return {"type": "user.followed_up", "reason": name}


def test_broken_tool_calls_cost_and_do_not_leave_the_data():
    call = ToolCall(name="edit", valid=False)
    broken = make_trace(route="chat", tool_calls=(call,))
    assert _reward(_said("rephrase"), trace=broken) < _reward(_said("rephrase"))
    assert _reward(trace=broken) < 0  # a turn that broke off there is known to be bad


def test_asking_back_instead_of_editing_is_scored_and_shows_in_the_mix():
    edit, ask = ["edit.applied", kept(30, 0.9)], [_said("clarify")]
    assert _reward(*ask) < 0 < _reward(*edit)
    rates = [
        action_mix(action_of(CHAT, fold(make_events(*steps), shown_bytes=10, places=CHAT_PLACES))
                   for steps in ([edit] * (10 - n) + [ask] * n)).edit_rate
        for n in (1, 9)
    ]  # fmt: skip
    assert rates == [0.9, 0.1]


def test_showing_less_gives_up_what_would_have_been_accepted():
    # Three in four are wanted: silence on all of them looks safe and is worth less.
    shown = [judged(ACCEPTED).reward] * 3 + [judged(REJECTED).reward]
    silent = [judged(trace=make_silence()).reward] * 4
    assert fmean(r for r in shown if r is not None) > fmean(r for r in silent if r is not None) == 0
    assert action_mix([action_of(make_silence(), fold((), shown_bytes=0))]).show_rate == 0.0


def test_short_suggestions_earn_a_decision_no_more_and_take_fewer_bytes():
    long, short = judged(ACCEPTED), judged(ACCEPTED, trace=make_trace(token_bytes=(1, 0, 0)))
    assert long.reward == short.reward
    assert short.accepted_bytes < long.accepted_bytes  # what the gate compares


@pytest.mark.parametrize("kept_share", [0.0, 0.1, 0.4, 0.49])
def test_flattery_does_not_pay_for_work_that_is_thrown_away(kept_share):
    flattered = _reward("edit.applied", kept(30, kept_share), UP)
    assert flattered <= 0
    assert flattered - _reward("edit.applied", kept(30, kept_share)) <= 0.2
