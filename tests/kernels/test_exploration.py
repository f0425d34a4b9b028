"""Exploration weights at their edges; tests/learner/test_bandits.py proves what they are for."""

import math

import pytest

from kernels.exploration import exploration_weight


def test_the_weight_is_policy_over_the_mixture_for_every_first_token() -> None:
    policy = (0.3, 0.2, 0.5)  # silence first
    behavior = (0.8 * 0.3, 0.8 * 0.2 + 0.2 * 0.2 / 0.7, 0.8 * 0.5 + 0.2 * 0.5 / 0.7)
    assert sum(behavior) == pytest.approx(1.0)
    for action in range(3):
        got = exploration_weight(0.2, math.log(0.3), action == 0)
        assert got == pytest.approx(policy[action] / behavior[action], rel=1e-12)


@pytest.mark.parametrize(
    ("share", "silence_logprob", "is_silent", "expected"),
    [
        (0.0, 0.0, False, 1.0),
        (0.0, -1.0, True, 1.0),
        (0.1, -math.inf, False, 1.0),
        (0.1, -1.0, True, 1 / 0.9),
        (0.1, 0.0, False, 0.0),
        (0.1, 1e-7, False, 0.0),  # a float32 log-softmax may round above 0
        (0.1, -1e-18, False, 1e-17),  # 1 / (1 - exp(x)) would divide by zero here
        (0.5, math.log(0.5), False, 1 / 1.5),
    ],
)
def test_exploration_weights_at_the_edges(
    share: float, silence_logprob: float, is_silent: bool, expected: float
) -> None:
    got = exploration_weight(share, silence_logprob, is_silent)
    assert got == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("share", "silence_logprob"), [(1.0, -1.0), (-0.1, -1.0), (0.1, 0.5), (0.1, math.nan)]
)
def test_impossible_exploration_is_refused(share: float, silence_logprob: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        exploration_weight(share, silence_logprob, False)
