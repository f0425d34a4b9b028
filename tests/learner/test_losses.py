"""The losses token by token: hand-worked numbers, bands, hostile inputs, shared divisors."""

import math
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.losses import LossOutput, kl_k2_loss, online_loss

NAN, INF = float("nan"), float("inf")


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def leaf(*values: float) -> Tensor:
    return tensor(*values).requires_grad_()


def banded(policy_T: Tensor, behavior_T: Tensor, mask_T: Tensor, **overrides: Tensor) -> LossOutput:
    ones_T = torch.ones_like(policy_T).detach()
    return online_loss(
        policy_T,
        behavior_T,
        overrides.get("advantages_T", ones_T),
        overrides.get("weights_T", ones_T),
        mask_T,
        ratio_low=0.5,
        ratio_high=2.0,
    )


def test_the_online_loss_is_the_hand_worked_number() -> None:
    policy_T = leaf(-1.0, -2.0, -3.0)
    behavior_T = tensor(-1.0, -2.0 - math.log(1.5), -3.0)
    loss, metrics = banded(
        policy_T,
        behavior_T,
        torch.tensor([True, True, False]),
        advantages_T=tensor(2.0, -1.0, 5.0),
        weights_T=tensor(0.5, 1.0, 1.0),
    )
    # ratios 1, 1.5; terms -(1 * .5 * 2 * -1) = 1 and -(1.5 * 1 * -1 * -2) = -3; N = 2
    assert loss.item() == pytest.approx(-1.0, abs=1e-12)
    (gradient_T,) = torch.autograd.grad(loss, policy_T)
    assert gradient_T.tolist() == pytest.approx([-0.5, 0.75, 0.0], abs=1e-12)
    assert metrics["kept_share"].item() == 1.0
    assert metrics["ratio_mean"].item() == pytest.approx(1.25)
    assert metrics["log_ratio_abs_max"].item() == pytest.approx(math.log(1.5))


def test_tokens_outside_the_band_add_no_gradient_and_still_count_in_the_divisor() -> None:
    policy_T = leaf(-1.0, -1.0, -1.0, -1.0)
    ratio_T = tensor(1.0, 0.49, 2.01, 1.99)
    loss, metrics = banded(
        policy_T, policy_T.detach() - ratio_T.log(), torch.ones(4, dtype=torch.bool)
    )
    (gradient_T,) = torch.autograd.grad(loss, policy_T)
    assert gradient_T.tolist() == pytest.approx([-0.25, 0.0, 0.0, -1.99 / 4], abs=1e-12)
    shares = [metrics[f"{name}_share"].item() for name in ("kept", "clipped_low", "clipped_high")]
    assert shares == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("gap", [91.0, -91.0, INF, -INF])
def test_a_log_ratio_far_off_gives_no_nan_and_no_gradient(gap: float) -> None:
    policy_T = torch.tensor([-1.0, -1.0], requires_grad=True)  # float32: exp(91) overflows
    behavior_T = torch.tensor([-1.0 - gap, -1.0])
    mask_T = torch.tensor([True, True])
    loss, metrics = banded(policy_T, behavior_T, mask_T)
    (gradient_T,) = torch.autograd.grad(loss, policy_T)
    assert gradient_T.tolist() == [0.0, -0.5]
    assert metrics["log_ratio_abs_max"].item() == abs(gap)
    kl, kl_metrics = kl_k2_loss(policy_T, torch.tensor([-1.0 - 0.5, -1.0]), behavior_T, mask_T)
    assert all(math.isfinite(value.item()) for value in (kl, *kl_metrics.values()))


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_masked_out_tokens_may_hold_anything(poison: float) -> None:
    policy_T = leaf(-1.0, poison)
    mask_T = torch.tensor([True, False])
    bad_T = tensor(-1.0, poison)
    online = banded(policy_T, bad_T, mask_T, advantages_T=bad_T, weights_T=-bad_T)
    kl = kl_k2_loss(policy_T, bad_T + 0.3, bad_T, mask_T, weights_T=-bad_T)
    for loss, metrics in (online, kl):
        (gradient_T,) = torch.autograd.grad(loss, policy_T)
        assert gradient_T.isfinite().all()
        assert gradient_T[0] != 0
        assert gradient_T[1] == 0
        assert loss.isfinite()
        assert all(value.isfinite() for value in metrics.values())


@pytest.mark.parametrize("num_tokens", [0, 3])
def test_an_empty_mask_gives_zero_loss_and_zero_gradient(num_tokens: int) -> None:
    policy_T = torch.full((num_tokens,), -1.0, requires_grad=True)
    other_T = torch.full((num_tokens,), -9.0)
    mask_T = torch.zeros(num_tokens, dtype=torch.bool)
    for loss, metrics in (
        banded(policy_T, other_T, mask_T),
        kl_k2_loss(policy_T, other_T, other_T, mask_T),
    ):
        (gradient_T,) = torch.autograd.grad(loss, policy_T)
        assert loss.item() == 0.0
        assert gradient_T.tolist() == [0.0] * num_tokens
        assert all(value.item() == 0.0 for value in metrics.values())


def test_a_nan_logprob_of_a_trained_token_trains_nothing_and_shows_in_the_metrics() -> None:
    policy_T = leaf(-1.0, -1.0)
    loss, metrics = banded(policy_T, tensor(NAN, -1.0), torch.tensor([True, True]))
    (gradient_T,) = torch.autograd.grad(loss, policy_T)
    assert gradient_T.tolist() == [0.0, -0.5]
    assert metrics["kept_share"].item() == 0.5
    assert math.isnan(metrics["log_ratio_abs_max"].item())


def test_the_ratio_and_the_metrics_carry_no_gradient() -> None:
    policy_T = leaf(-1.0, -2.0)
    loss, metrics = banded(policy_T, tensor(-1.2, -1.8), torch.tensor([True, True]))
    (gradient_T,) = torch.autograd.grad(loss, policy_T)
    ratio_T = tensor(0.2, -0.2).exp()
    assert torch.allclose(gradient_T, -ratio_T / 2, atol=1e-12)  # r, not r (1 + log policy)
    assert not any(value.requires_grad for value in metrics.values())


@given(cut=st.integers(min_value=0, max_value=12), seed=st.integers(min_value=0, max_value=99))
def test_microbatches_with_the_batch_divisor_add_up_to_the_batch(cut: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(5, 12, generator=generator, dtype=torch.float64)
    mask_T = torch.rand(12, generator=generator) < 0.7
    num_tokens = max(int(mask_T.sum()), 1)
    policy_T = rows[0].clone().requires_grad_()
    behavior_T = rows[0] + 0.5 * rows[1]

    def losses(part: slice, divisor: float | None) -> tuple[LossOutput, LossOutput]:
        policy_P, behavior_P, mask_P = policy_T[part], behavior_T[part], mask_T[part]
        online = online_loss(
            policy_P,
            behavior_P,
            rows[2][part],
            rows[3][part].abs(),
            mask_P,
            ratio_low=0.5,
            ratio_high=2.0,
            num_tokens=divisor,
        )
        return online, kl_k2_loss(policy_P, rows[4][part], behavior_P, mask_P, num_tokens=divisor)

    whole = losses(slice(None), None)
    parts = [losses(slice(None, cut), num_tokens), losses(slice(cut, None), num_tokens)]
    for index, output in enumerate(whole):
        (expected_T,) = torch.autograd.grad(output.loss, policy_T)
        (got_T,) = torch.autograd.grad(parts[0][index].loss + parts[1][index].loss, policy_T)
        assert torch.allclose(got_T, expected_T, atol=1e-14)
        for name in set(output.metrics) - {"log_ratio_abs_max"}:
            got = sum(part[index].metrics[name] for part in parts)
            assert float(got) == pytest.approx(output.metrics[name].item(), abs=1e-6)  # float32


def test_a_divisor_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="num_tokens: expected a positive divisor, got 0"):
        kl_k2_loss(leaf(-1.0), tensor(-1.0), tensor(-1.0), torch.tensor([True]), num_tokens=0)


def test_the_kl_loss_is_the_hand_worked_number() -> None:
    policy_T = leaf(-1.0, -2.0)
    loss, metrics = kl_k2_loss(
        policy_T, tensor(-1.5, -1.0), tensor(-1.0, -2.0 - math.log(8)), torch.tensor([True, True])
    )
    # d = .5, -1; ratios 1 and 8, the second cut at 5: (.125 + 5 * .5) / 2
    assert loss.item() == pytest.approx(1.3125, abs=1e-12)
    (gradient_T,) = torch.autograd.grad(loss, policy_T)
    assert gradient_T.tolist() == pytest.approx([0.25, -2.5], abs=1e-12)
    assert metrics["kl_k1"].item() == pytest.approx((0.5 - 5) / 2, abs=1e-12)
    k3 = (math.exp(-0.5) - 1 + 0.5) + 5 * (math.e - 1 - 1)
    assert metrics["kl_k3"].item() == pytest.approx(k3 / 2, abs=1e-12)


def test_the_kl_loss_against_itself_is_zero_with_zero_gradient() -> None:
    policy_T = leaf(-1.0, -2.0)
    loss, _ = kl_k2_loss(policy_T, policy_T.detach(), policy_T.detach(), torch.tensor([True, True]))
    (gradient_T,) = torch.autograd.grad(loss, policy_T)
    assert loss.item() == 0.0
    assert gradient_T.tolist() == [0.0, 0.0]


@pytest.mark.slow
def test_inside_the_band_loss_and_gradient_equal_trl_cispo() -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed: pip install trl==1.16.0")
    generator = torch.Generator().manual_seed(3)
    policy_BT = torch.randn(4, 6, generator=generator, dtype=torch.float64) - 2
    behavior_BT = policy_BT + 0.2 * torch.randn(4, 6, generator=generator, dtype=torch.float64)
    advantages_B = torch.randn(4, generator=generator, dtype=torch.float64)
    mask_BT = torch.rand(4, 6, generator=generator) < 0.8
    peer_BT = policy_BT.clone().requires_grad_()
    peer_loss = _trl_cispo_loss(trl, peer_BT, behavior_BT, advantages_B, mask_BT)
    ours_BT = policy_BT.clone().requires_grad_()
    advantages_BT = advantages_B[:, None].expand(4, 6)
    loss, metrics = banded(
        ours_BT.flatten(),
        behavior_BT.flatten(),
        mask_BT.flatten(),
        advantages_T=advantages_BT.flatten(),
    )
    assert metrics["kept_share"].item() == 1.0  # outside the band the two differ by design
    assert loss.item() == pytest.approx(peer_loss.item(), rel=1e-12)
    (peer_gradient_BT,) = torch.autograd.grad(peer_loss, peer_BT)
    (gradient_BT,) = torch.autograd.grad(loss, ours_BT)
    assert torch.allclose(gradient_BT, peer_gradient_BT, rtol=1e-12, atol=1e-15)


def _trl_cispo_loss(
    trl: object, policy_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor
) -> Tensor:
    """TRL's own loss method on given log-probs; a stand-in trainer holds its settings."""
    trainer = MagicMock(
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        loss_type="cispo",
        epsilon_low=0.2,
        epsilon_high=5.0,
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
    )
    trainer.args.steps_per_generation = 1
    trainer.accelerator.num_processes = 1
    trainer._get_per_token_logps_and_entropies.return_value = (
        policy_BT,
        torch.zeros_like(policy_BT).detach(),
        None,
    )
    ids_BT = torch.zeros(policy_BT.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids_BT[:, :1],
        "prompt_mask": ids_BT[:, :1] + 1,
        "completion_ids": ids_BT,
        "completion_mask": mask_BT.long(),
        "advantages": advantages_B,
        "old_per_token_logps": behavior_BT,
        "num_items_in_batch": mask_BT.sum(),
    }
    loss: Tensor = trl.GRPOTrainer._compute_loss(trainer, MagicMock(training=True), inputs)  # type: ignore[attr-defined]
    return loss
