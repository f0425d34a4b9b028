"""Advantages: scale, floor, mask and the cases that break group methods."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.advantages import online_advantages


def advantages(
    credits_T: list[float],
    baselines: list[float],
    num_tokens: list[int],
    *,
    weights: list[float] | None = None,
    mask: list[bool] | None = None,
) -> Tensor:
    return online_advantages(
        torch.tensor(credits_T, dtype=torch.float64),
        torch.tensor(mask or [True] * len(credits_T)),
        torch.tensor(baselines, dtype=torch.float64),
        torch.tensor(weights or [1.0] * len(num_tokens), dtype=torch.float64),
        torch.tensor(num_tokens),
    )


def test_advantages_are_the_hand_worked_numbers() -> None:
    # credit - baseline: .5 .5 | -.25; weights 1 1 | 2: RMS^2 = (.25 + .25 + 2 * .0625) / 4
    got_T = advantages([0.75, 0.75, -0.25], [0.25, 0.0], [2, 1], weights=[1.0, 2.0])
    rms = math.sqrt(0.625 / 4)
    assert got_T.tolist() == pytest.approx([0.5 / rms, 0.5 / rms, -0.25 / rms], abs=1e-12)


@pytest.mark.parametrize(("reward", "expected"), [(0.75, 1.0), (-0.25, -1.0)])
def test_a_batch_of_one_decision_still_learns(reward: float, expected: float) -> None:
    assert advantages([reward], [0.0], [1]).tolist() == pytest.approx([expected])


def test_rewards_equal_to_the_baseline_give_zeros() -> None:
    assert advantages([0.5, 0.5, 0.5], [0.5, 0.5], [2, 1]).tolist() == [0.0, 0.0, 0.0]


def test_equal_rewards_away_from_the_baseline_are_not_centred_away() -> None:
    assert advantages([0.5, 0.5], [0.0, 0.0], [1, 1]).tolist() == pytest.approx([1.0, 1.0])


def test_a_nearly_constant_batch_is_not_blown_up() -> None:
    assert advantages([0.501, 0.499], [0.5, 0.5], [1, 1]).tolist() == pytest.approx([0.01, -0.01])


def test_partial_credit_keeps_its_sign_inside_one_decision() -> None:
    kept, cut = advantages([0.75, -0.25], [0.25], [2]).tolist()
    assert (kept, cut) == pytest.approx((1.0, -1.0))


def test_masked_out_tokens_get_zero_and_do_not_move_the_scale() -> None:
    mask = [True, False, True]
    got_T = advantages([0.75, float("nan"), -0.25], [0.0, 0.0], [2, 1], mask=mask)
    rms = math.sqrt((0.75**2 + 0.25**2) / 2)
    assert got_T.tolist() == pytest.approx([0.75 / rms, 0.0, -0.25 / rms])


@pytest.mark.parametrize("case", ["all masked", "no weight"])
def test_a_batch_without_evidence_gives_no_nan(case: str) -> None:
    if case == "all masked":
        assert advantages([0.5, 0.2], [0.0], [2], mask=[False, False]).tolist() == [0.0, 0.0]
    else:
        assert advantages([0.5], [0.0], [1], weights=[0.0]).isfinite().all()


@given(
    rewards=st.lists(st.floats(min_value=-1, max_value=1), min_size=1, max_size=20),
    data=st.data(),
)
def test_the_weighted_rms_over_trained_tokens_is_one_or_below_the_floor(
    rewards: list[float], data: st.DataObject
) -> None:
    size = len(rewards)
    num_tokens = data.draw(st.lists(st.integers(1, 4), min_size=size, max_size=size))
    weights = data.draw(st.lists(st.floats(0.1, 1.2), min_size=size, max_size=size))
    credits_T = [reward for reward, n in zip(rewards, num_tokens, strict=True) for _ in range(n)]
    got_T = advantages(credits_T, [0.1] * size, num_tokens, weights=weights)
    weights_T = torch.tensor(weights, dtype=torch.float64).repeat_interleave(
        torch.tensor(num_tokens)
    )
    rms = ((weights_T * got_T.square()).sum() / weights_T.sum()).sqrt().item()
    assert rms == pytest.approx(1.0) or rms < 1.0


def test_token_counts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a sum of 2 credits, got 3"):
        advantages([0.5, 0.5], [0.0], [3])
