"""The reward table of the default recipe, by value."""

import itertools
import math

import pytest

from signals.judge import Judgement, judge
from signals.recipe import load_recipe
from tendril.records import Feedback, Trace
from tests.builders import make_feedback, make_trace
from tests.signals.streams import make_silence

RECIPE = load_recipe(None)


def _events(*steps: str | dict[str, object]) -> list[Feedback]:
    """Events one second apart, in order; a step is a type or fields that override."""
    events = []
    for seq, step in enumerate(steps, start=1):
        fields = {"type": step} if isinstance(step, str) else step
        times = {"client_seq": seq, "client_time": 1_000.0 + seq, "ingested_at": 1_000.5 + seq}
        events.append(make_feedback(**({"event_id": f"e{seq}"} | times | fields)))
    return events


def _judge(*steps: str | dict[str, object], trace: Trace | None = None) -> Judgement:
    return judge(RECIPE, trace or make_trace(), _events(*steps), age_s=math.inf)


def _kept(horizon_s: float, value: float) -> dict[str, object]:
    return {"type": "retention.measured", "horizon_s": horizon_s, "value": value}


SHOWN, ACCEPTED, REJECTED = "suggestion.shown", "suggestion.accepted", "suggestion.rejected"
UNDONE, REDONE = "edit.undone", "edit.redone"
HALF = {"type": "suggestion.accepted_partially", "span": (0, 5)}
CHAT = make_trace(route="chat")


@pytest.mark.parametrize(
    ("steps", "reward", "weight", "outcome"),
    [
        ((SHOWN, ACCEPTED), 0.75, 1.0, "accepted"),
        ((SHOWN, ACCEPTED, _kept(30, 1.0), _kept(300, 1.0)), 0.75, 1.0, "accepted"),
        ((ACCEPTED, _kept(30, 1.0), _kept(300, 0.5)), 0.45, 1.0, "accepted"),
        ((ACCEPTED, _kept(30, 0.0)), -0.25, 1.0, "accepted"),
        ((HALF,), 0.25, 1.0, "accepted_partially"),
        (({"type": "suggestion.accepted_partially", "value": 0.5},), 0.25, 1.0,
         "accepted_partially"),
        ((HALF, ACCEPTED), 0.75, 1.0, "accepted"),
        ((SHOWN, REJECTED), -0.25, 1.0, "rejected"),
        ((ACCEPTED, REJECTED), -0.25, 1.0, "rejected"),
        ((ACCEPTED, UNDONE), -0.50, 1.0, "undone"),
        ((ACCEPTED, UNDONE, REDONE), 0.75, 1.0, "accepted"),
        ((ACCEPTED, UNDONE, REDONE, UNDONE), -0.50, 1.0, "undone"),
        ((ACCEPTED, _kept(30, 1.0), {"type": UNDONE, "client_time": 1_062.0}), -0.05, 1.0,
         "undone"),
        ((SHOWN, "suggestion.ignored"), -0.25, 0.5, "ignored"),
        ((SHOWN,), -0.25, 0.5, "ignored"),
        (({"type": SHOWN, "visible_ms": 100.0},), None, 1.0, "not_exposed"),
        (({"type": SHOWN, "visible_ms": 100.0}, REJECTED), None, 1.0, "not_exposed"),
        (({"type": SHOWN, "visible_ms": 100.0}, ACCEPTED), 0.75, 1.0, "accepted"),
        ((), None, 1.0, "unknown"),
        (("session.ended",), None, 1.0, "unknown"),
    ],
)  # fmt: skip
def test_the_reward_of_a_suggestion(steps, reward, weight, outcome):
    judgement = _judge(*steps)
    assert judgement.reward == (None if reward is None else pytest.approx(reward, abs=1e-12))
    assert (judgement.weight, judgement.outcome) == (weight, outcome)


def test_silence_is_worth_exactly_zero():
    silent = make_silence()
    judgement = _judge(trace=silent)
    assert (judgement.reward, judgement.credit, judgement.outcome) == (0.0, (0.0,), "suppressed")


def test_an_empty_text_was_not_exposed():
    assert _judge(SHOWN, ACCEPTED, trace=make_trace(token_bytes=(0, 0, 0))).reward is None


def test_unmeasured_retention_is_absent_from_the_components():
    assert _judge(ACCEPTED).components == {"accepted_share": 1.0, "threshold": -0.25}
    assert _judge(ACCEPTED, _kept(30, 0.4)).components["retention"] == pytest.approx(0.4)


def test_arrival_order_does_not_matter():
    events = _events(SHOWN, ACCEPTED, UNDONE, REDONE)
    judgements = [
        judge(RECIPE, make_trace(trace_id="t1"), order, age_s=math.inf)
        for order in itertools.permutations(events)
    ]
    assert all(judgement == judgements[0] for judgement in judgements)
    assert (judgements[0].reward, judgements[0].feedback_at) == (0.75, 1_004.5)


@pytest.mark.parametrize(
    ("steps", "invalid"),
    [
        ((SHOWN, UNDONE), ("e2",)),
        ((REJECTED, UNDONE), ("e2",)),
        ((ACCEPTED, REDONE), ("e2",)),
        ((ACCEPTED, UNDONE, UNDONE), ("e3",)),
        (({"type": "suggestion.accepted_partially", "span": (0, 11)},), ("e1",)),
        (({"type": "suggestion.accepted_partially"},), ("e1",)),
        ((_kept(30, 1.5), _kept(30, float("nan"))), ("e1", "e2")),
        (({"type": "feedback.vote", "value": 7.0},), ("e1",)),
    ],
)
def test_impossible_events_are_set_aside(steps, invalid):
    assert _judge(*steps).invalid_event_ids == invalid


def test_a_partial_acceptance_credits_tokens_up_to_its_last_byte():
    judgement = _judge({"type": "suggestion.accepted_partially", "span": (0, 6)})
    assert (judgement.accepted_bytes, judgement.shown_bytes) == (6, 10)
    kept_mean = (1 + 1 + 0.2) / 3
    assert judgement.reward == pytest.approx(0.35)
    assert judgement.credit == pytest.approx(
        [0.35 + 0.25 * (kept - kept_mean) for kept in (1, 1, 0.2)]
    )


def test_all_tokens_get_the_reward_when_nothing_stays_accepted():
    assert _judge(REJECTED).credit == (-0.25,) * 3
    undone = _judge({"type": "suggestion.accepted_partially", "span": (0, 6)}, UNDONE)
    assert (undone.credit, undone.accepted_bytes) == ((-0.5,) * 3, 0)


def _vote(value: float) -> dict[str, object]:
    return {"type": "feedback.vote", "value": value}


@pytest.mark.parametrize(
    ("steps", "reward"),
    [
        ((), None),
        (("user.followed_up",), None),
        ((_kept(30, 0.8),), 0.6),
        ((_kept(30, 0.8), "response.regenerated"), (0.45 * 0.6 - 0.10) / 0.55),
        ((_kept(30, 0.8), {"type": "user.followed_up", "value": -0.6}),
         (0.45 * 0.6 - 0.25 * 0.6) / 0.70),
        ((_kept(30, 0.8), _vote(-1)), (0.45 * 0.6 - 0.05) / 0.50),
        ((_kept(30, 0.52), _vote(-1)), 0.0),
        ((_vote(1),), 0.10),
        ((_vote(1), _vote(-1)), -0.10),
        ((_vote(1), _vote(0)), None),
        (("response.stopped",), -1.0),
        (("response.stopped", _vote(1)), -0.8),
        (("edit.applied", UNDONE), -1.0),
    ],
)  # fmt: skip
def test_the_reward_of_a_chat_turn(steps, reward):
    got = _judge(*steps, trace=CHAT).reward
    assert got == (None if reward is None else pytest.approx(reward, abs=1e-12))


def test_a_trace_without_a_token_is_worth_nothing_and_is_closed() -> None:
    trace = make_trace(
        completion_token_ids=(), behavior_logprobs=(), token_bytes=(), policy_spans=(),
        finish_reason="cancelled_by_client", untrainable="no_tokens",
    )  # fmt: skip
    judgement = judge(RECIPE, trace, (), age_s=math.inf)
    assert (judgement.reward, judgement.outcome, judgement.credit) == (None, "not_exposed", ())
