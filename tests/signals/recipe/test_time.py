"""Due, pending, censored, missing; and clocks that cannot be trusted."""

import math

import pytest

from signals.durations import duration_s
from tests.builders import make_feedback, make_trace
from tests.signals.recipe.steps import ACCEPTED, REJECTED, SHOWN, UNDONE, judged, kept

CHAT = make_trace(route="chat")
DAY_S = 86_400.0


def test_a_horizon_that_is_not_due_is_pending_and_one_that_is_due_is_missing():
    # Accepted a second after the trace: due at 31, 301 and 86,401 seconds.
    early, later, end = (judged(ACCEPTED, kept(30, 0.4), age_s=age_s)
                         for age_s in (300.9, 301.0, math.inf))  # fmt: skip
    assert early.pending == ("retention_300s", "retention_86400s")
    assert (later.pending, later.missing) == (("retention_86400s",), ("retention_300s",))
    assert (end.pending, end.missing) == ((), ("retention_300s", "retention_86400s"))
    assert early.reward == later.reward == end.reward == pytest.approx(0.15)


def test_nothing_measured_yet_leaves_the_acceptance_and_says_what_is_to_come():
    judgement = judged(ACCEPTED, age_s=5.0)
    assert judgement.reward == 0.75
    assert len(judgement.pending) == 3
    assert "retention" not in judgement.components


@pytest.mark.parametrize(
    ("measured", "left_out"),
    [
        (kept(300, reason="file_deleted"), "censored"),
        (kept(300, 0.0, reason="file_deleted"), "censored"),
        (kept(300, 0.0, branch_changed=True), "censored"),
        (kept(300, reason="client_error"), "missing"),
    ],
)
def test_what_cannot_be_observed_is_left_out_with_its_reason(measured, left_out):
    judgement = judged(ACCEPTED, kept(30, 0.5), measured, kept(DAY_S, 1.0))
    assert getattr(judgement, left_out) == ("retention_300s",)
    assert judgement.components["retention"] == pytest.approx((0.2 * 0.5 + 0.5 * 1.0) / 0.7)
    assert judgement.invalid_event_ids == ()


def test_a_renamed_file_is_followed():
    judgement = judged(ACCEPTED, kept(30, 0.5, reason="file_renamed"))
    assert (judgement.components["retention"], judgement.censored) == (0.5, ())


def test_the_end_of_the_session_censors_what_comes_after_it():
    judgement = judged(ACCEPTED, kept(30, 0.5), "session.ended", age_s=10.0)
    assert judgement.censored == ("retention_300s", "retention_86400s")
    assert judgement.pending == ()


def test_a_commit_takes_the_place_of_the_last_horizon():
    commit = {"type": "commit.observed", "num_chars": 20, "total_chars": 40}
    judgement = judged(ACCEPTED, kept(30, 1.0), kept(300, 1.0), commit, age_s=400.0)
    assert judgement.components["retention"] == pytest.approx(0.2 + 0.3 + 0.5 * 0.5)
    assert judgement.pending == ()


def test_a_share_is_made_of_its_figures_and_never_more_than_they_say():
    figures = {"no_revert": 0.9, "arc_chars": 30, "total_chars": 40}
    assert judged(ACCEPTED, kept(30, **figures)).components["retention"] == pytest.approx(0.675)
    # A rewrite: the client cut it to a half. A client that claims more is not believed.
    assert judged(ACCEPTED, kept(30, 0.5, **figures)).components["retention"] == 0.5
    assert judged(ACCEPTED, kept(30, 1.0, **figures)).components["retention"] == pytest.approx(
        0.675
    )


def test_improved_code_is_worth_more_than_reverted_code():
    improved = judged(ACCEPTED, kept(30, no_revert=1.0, arc_chars=30, total_chars=40))
    reverted = judged(ACCEPTED, kept(30, no_revert=0.2, arc_chars=30, total_chars=40))
    assert improved.reward is not None
    assert reverted.reward is not None
    assert improved.reward > 0 > reverted.reward


def test_silence_after_showing_is_undecided_for_ten_seconds_then_ignored():
    undecided, ignored = judged(SHOWN, age_s=10.9), judged(SHOWN, age_s=11.0)
    assert (undecided.reward, undecided.pending) == (None, ("decision",))
    assert (ignored.reward, ignored.weight, ignored.outcome) == (-0.25, 0.5, "ignored")
    assert judged(SHOWN, REJECTED).weight == 1.0


@pytest.mark.parametrize(
    ("shown", "gone", "outcome"),
    [
        ({"visible_ms": 100.0}, {"reason": "timeout"}, "not_exposed"),
        ({"visible_ms": 400.0}, {"reason": "replaced"}, "not_exposed"),
        ({"visible_ms": 600.0}, {"reason": "replaced"}, "ignored"),
        ({}, {"reason": "replaced", "client_time": 1_001.4}, "not_exposed"),
        ({}, {"reason": "replaced", "client_time": 1_002.0}, "ignored"),
        ({"visible_ms": 4_000.0}, {"reason": "continued"}, "not_exposed"),
        ({"visible_ms": 400.0}, {"reason": "typed_over"}, "ignored"),
    ],
)
def test_what_nobody_saw_has_no_reward(shown, gone, outcome):
    judgement = judged({"type": SHOWN, **shown}, {"type": "suggestion.ignored", **gone})
    assert judgement.outcome == outcome
    assert (judgement.reward is None) == (outcome == "not_exposed")


def test_off_clocks_keep_the_order_and_hide_how_long_it_took():
    assert judged(ACCEPTED, UNDONE).reward == -0.5
    for skew_s in (7_200.0, -86_400.0):
        judgement = judged(ACCEPTED, UNDONE, skew_s=skew_s)
        # Undone all the same; whether within seconds is not known.
        assert (judgement.reward, judgement.outcome) == (-0.25, "undone")
    jumped = judged(ACCEPTED, {"type": UNDONE, "client_time": 5.0})
    assert (jumped.reward, jumped.outcome) == (-0.25, "undone")


@pytest.mark.parametrize(
    ("wall_s", "monotonic_s", "skew_s", "seconds"),
    [
        (10.0, None, 0.0, 10.0),
        (10.0, 9.0, 299.0, 9.0),
        (10.0, 9.0, -301.0, None),
        (10.0, 20.0, 0.0, None),
        (10.0, -1.0, 0.0, None),
        (-0.1, None, 0.0, 0.0),
        (-3_600.0, 1.0, 0.0, None),
    ],
)
def test_a_duration_needs_clocks_that_agree(wall_s, monotonic_s, skew_s, seconds):
    earlier = make_feedback(client_time=1_000.0, client_monotonic_s=5.0)
    later = make_feedback(
        client_time=1_000.0 + wall_s,
        client_monotonic_s=None if monotonic_s is None else 5.0 + monotonic_s,
    )
    assert duration_s(earlier, later, skew_s=skew_s) == (
        None if seconds is None else pytest.approx(seconds)
    )


def test_a_chat_turn_says_what_is_pending_of_its_edits():
    judgement = judged("edit.applied", trace=CHAT, age_s=5.0)
    assert judgement.reward is None
    assert judgement.pending == ("retention_30s", "retention_300s", "retention_86400s")
