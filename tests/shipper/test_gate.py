"""The gate on simulated decisions of a small categorical policy, whose true values are known."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from shipper.gate import evaluate
from shipper.off_policy import effective_samples, paired_value, t_975
from tendril.records import Check, Episode, EvalReport, Exploration, PolicySpan
from tendril.settings import ShippingSettings
from tests.builders import make_episode, make_segment

SILENCE = 1
SETTINGS = ShippingSettings(gate_min_episodes=100, reward_margin=0.05)
LIVE = np.array([[0.4, 0.3, 0.3], [0.3, 0.5, 0.2]])
"""[context, action]: silence, a good suggestion, a bad one."""
REWARDS = np.array([0.0, 0.75, -0.25])
SHARE = 0.1


class Compared(NamedTuple):
    candidate_logprobs_T: NDArray[np.float64]
    live_logprobs_T: NDArray[np.float64]
    kl_T: NDArray[np.float64]
    candidate_silence: float
    live_silence: float


def simulate(
    candidate: NDArray[np.float64], num_episodes: int = 400, seed: int = 0, **overrides: Any
) -> tuple[list[Any], list[Episode]]:
    """Decisions drawn from `LIVE` with forced shows, ten to a session."""
    rng = np.random.default_rng(seed)
    comparisons: list[Any] = []
    episodes = []
    for i in range(num_episodes):
        context, forced = int(rng.integers(2)), bool(rng.random() < SHARE)
        drawn_from = LIVE[context].copy()
        if forced:
            drawn_from[0] = 0.0
        action = int(rng.choice(3, p=drawn_from / drawn_from.sum()))
        logprob = float(np.log(LIVE[context, action]))
        segment = make_segment(
            completion_token_ids=(SILENCE if action == 0 else 10 + action,),
            loss_mask=(True,),
            behavior_logprobs=(logprob,),
            credit=(REWARDS[action],),
            policy_spans=(PolicySpan(policy_version=overrides.get("version", 1), num_tokens=1),),
            exploration=Exploration(
                share=SHARE, forced=forced, silence_logprob=float(np.log(LIVE[context, 0]))
            ),
        )
        episodes.append(
            make_episode(
                episode_id=f"e{i}",
                session_id=f"s{i // 10}",
                segments=(segment,),
                reward=float(REWARDS[action]),
                accepted_bytes=5 if action == 1 else 0,
                held_out=True,
            )
        )
        new, old = candidate[context], LIVE[context]
        comparisons.append(
            Compared(
                np.log(new[[action]]),
                np.log(old[[action]]),
                np.array([float((new * np.log(new / old)).sum())]),
                float(new[0]),
                float(old[0]),
            )
        )
    return comparisons, episodes


def gate(
    candidate: NDArray[np.float64], settings: ShippingSettings = SETTINGS, **kwargs: Any
) -> EvalReport:
    comparisons, episodes = simulate(candidate, **kwargs)
    return evaluate(comparisons, episodes, 2, 1, settings, silence_token_id=SILENCE)


def check(report: EvalReport, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


def shifted(good: float, bad: float) -> NDArray[np.float64]:
    """`LIVE` with probability moved to the good and the bad suggestion, off the others."""
    policy = LIVE * np.array([1.0, np.exp(good), np.exp(bad)])
    result: NDArray[np.float64] = policy / policy.sum(axis=1, keepdims=True)
    return result


def test_the_live_policy_against_itself_passes_with_no_difference() -> None:
    report = gate(LIVE)
    assert report.verdict == "pass"
    assert check(report, "reward").value == pytest.approx(0.0, abs=1e-12)
    assert check(report, "kl").value == pytest.approx(0.0, abs=1e-12)


def test_equally_good_candidates_are_rarely_held() -> None:
    """Silence -0.04, good +0.01, bad +0.03: reward unchanged; at most 5 of 100 are held."""
    candidate = LIVE + np.array([-0.04, 0.01, 0.03])
    assert ((candidate - LIVE) @ REWARDS).mean() == pytest.approx(0.0)
    reports = [gate(candidate, num_episodes=200, seed=seed) for seed in range(100)]
    held = sum(report.verdict != "pass" for report in reports)
    assert held <= 5


def test_a_better_policy_passes_and_the_estimate_covers_its_true_gain() -> None:
    candidate = shifted(good=0.3, bad=-0.1)
    reward = check(gate(candidate, num_episodes=2_000), "reward")
    gain = float(((candidate - LIVE) @ REWARDS).mean())
    assert reward.verdict == "pass"
    assert reward.ci95 is not None
    assert reward.ci95[0] < gain < reward.ci95[1]


def test_a_planted_regression_fails() -> None:
    report = gate(shifted(good=-1.0, bad=1.0), num_episodes=1_000)
    assert check(report, "reward").verdict == "fail"
    assert check(report, "accepted_bytes").verdict == "fail"
    assert check(report, "kl").verdict == "fail"
    assert report.verdict == "fail"


def test_a_policy_that_goes_silent_fails_although_silence_is_never_punished() -> None:
    silent = np.array([[0.8, 0.1, 0.1], [0.8, 0.15, 0.05]])
    report = gate(silent)
    assert check(report, "silence").verdict == "fail"
    assert check(report, "silence").value == pytest.approx(0.45, abs=0.02)
    assert check(report, "accepted_bytes").verdict == "fail"
    assert report.verdict == "fail"


def test_numbers_that_are_not_finite_fail() -> None:
    comparisons, episodes = simulate(LIVE)
    comparisons[7] = comparisons[7]._replace(candidate_logprobs_T=np.array([np.nan]))
    report = evaluate(comparisons, episodes, 2, 1, SETTINGS, silence_token_id=SILENCE)
    assert report.verdict == "fail"
    assert "not finite" in check(report, "numerics").why


def test_no_data_is_inconclusive_and_never_a_pass() -> None:
    report = evaluate([], [], 2, 1, SETTINGS, silence_token_id=SILENCE)
    assert {c.verdict for c in report.checks} == {"inconclusive"}
    assert report.verdict == "inconclusive"


def test_too_few_episodes_are_inconclusive() -> None:
    reward = check(gate(LIVE, num_episodes=99), "reward")
    assert (reward.verdict, reward.num_samples) == ("inconclusive", 99)


def test_too_small_an_effective_sample_is_refused() -> None:
    comparisons, episodes = simulate(LIVE)
    for i in range(20, len(comparisons)):
        comparisons[i] = comparisons[i]._replace(candidate_logprobs_T=np.array([-12.0]))
    report = evaluate(comparisons, episodes, 2, 1, SETTINGS, silence_token_id=SILENCE)
    assert check(report, "reward").verdict == "inconclusive"
    assert "effective sample size" in check(report, "reward").why


def test_one_session_is_not_enough() -> None:
    comparisons, episodes = simulate(LIVE)
    same = [make_episode(segments=e.segments, reward=e.reward, session_id="s") for e in episodes]
    report = evaluate(comparisons, same, 2, 1, SETTINGS, silence_token_id=SILENCE)
    assert "sessions" in check(report, "reward").why


def test_a_gap_between_serving_and_gate_fails_numerics() -> None:
    comparisons, episodes = simulate(LIVE)
    off = [c._replace(live_logprobs_T=c.live_logprobs_T + 0.02) for c in comparisons]
    report = evaluate(off, episodes, 2, 1, SETTINGS, silence_token_id=SILENCE)
    assert check(report, "numerics").value == pytest.approx(0.02)
    assert check(report, "numerics").verdict == "fail"


def test_numerics_without_episodes_by_the_live_version_are_inconclusive() -> None:
    assert check(gate(LIVE, version=7), "numerics").verdict == "inconclusive"


def test_a_drop_as_large_as_the_margin_is_neither_passed_nor_failed() -> None:
    settings = ShippingSettings(gate_min_episodes=100, reward_margin=0.02)
    reward = check(gate(LIVE + np.array([0.0, -0.02, 0.02]), settings), "reward")
    assert reward.ci95 is not None
    assert reward.ci95[0] < -0.02 < reward.ci95[1]
    assert reward.verdict == "inconclusive"


def test_comparisons_that_do_not_match_the_episodes_are_refused() -> None:
    comparisons, episodes = simulate(LIVE, num_episodes=3)
    with pytest.raises(ValueError, match="got 2 comparisons for 3 segments"):
        evaluate(comparisons[:2], episodes, 2, 1, SETTINGS, silence_token_id=SILENCE)


def test_effective_samples_by_hand() -> None:
    assert effective_samples(np.array([1.0, 1.0, 2.0])) == pytest.approx(16 / 6)
    assert effective_samples(np.zeros(3)) == 0.0


def test_paired_value_by_hand() -> None:
    """Weights (3, 1) value (1, 0) at 3/4, weights (1, 1) at 1/2: difference 1/4, relative 1/2."""
    value = paired_value(
        np.array([1.0, 0.0]), np.array([3.0, 1.0]), np.array([1.0, 1.0]), ["a", "b"]
    )
    assert (value.candidate, value.live, value.difference) == (0.75, 0.5, 0.25)
    assert value.relative_change == pytest.approx(0.5)


def test_intervals_cover_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(3)
    sessions = [str(i // 8) for i in range(240)]
    inside = 0
    for _ in range(400):
        session_effect = np.repeat(rng.normal(0, 0.5, 30), 8)
        ratio = np.exp(rng.normal(-0.045, 0.3, 240))
        reward = 1.0 + session_effect + rng.normal(0, 1, 240) + 0.5 * np.log(ratio)
        value = paired_value(reward, ratio, np.ones(240), sessions)
        truth = 0.5 * 0.3**2  # E[ratio log ratio] - E[log ratio] times 0.5
        inside += value.difference_ci95[0] < truth < value.difference_ci95[1]
    assert 0.92 <= inside / 400 <= 0.98


@pytest.mark.parametrize(("degrees", "expected"), [(4, 2.7764), (10, 2.2281), (100, 1.9840)])
def test_students_t(degrees: int, expected: float) -> None:
    assert t_975(degrees) == pytest.approx(expected, rel=0.01)
