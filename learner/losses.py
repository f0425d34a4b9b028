"""Losses of the online lane, as pure functions. Shape: T = packed tokens, padding included.

Every sum is divided by one number of tokens. A long decision therefore adds one term for each of
its tokens, as the policy gradient of its joint probability asks, and the divisor only sets the
scale. Losses and metrics (maxima aside) add up over microbatches given the batch's `num_tokens`.
Masked-out tokens are cut with `where`: multiplying by zero would turn their inf into nan.
"""

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # keeps exp() finite when a logged log-prob is far off


class LossOutput(NamedTuple):
    """A scalar to differentiate, and detached scalars to log."""

    loss: Tensor
    metrics: dict[str, Tensor]


def online_loss(
    policy_logprobs_T: Tensor,
    behavior_logprobs_T: Tensor,
    advantages_T: Tensor,
    weights_T: Tensor,
    loss_mask_T: Tensor,
    *,
    ratio_low: float,
    ratio_high: float,
    num_tokens: float | None = None,
) -> LossOutput:
    """Banded REINFORCE: -1/N sum of ratio w A log(policy), ratio = policy / behavior, detached.

    Tokens whose ratio is outside [ratio_low, ratio_high] add no gradient. w is the decision's
    exploration weight times its observation weight. N is `num_tokens`, else the number of
    tokens in the bool mask, whether the band keeps them or not. Source: CISPO, arXiv:2506.13585.
    """
    num_trained = _divisor(loss_mask_T, num_tokens)
    log_ratio_T = _log_ratio(policy_logprobs_T, behavior_logprobs_T, loss_mask_T)
    ratio_T = _clamped_exp(log_ratio_T)
    low_T = loss_mask_T & (ratio_T < ratio_low)
    high_T = loss_mask_T & (ratio_T > ratio_high)
    keep_T = loss_mask_T & (ratio_T >= ratio_low) & (ratio_T <= ratio_high)  # drops nan too
    coefficient_T = torch.where(keep_T, ratio_T * weights_T * advantages_T, 0.0).detach()
    loss = -torch.where(keep_T, coefficient_T * policy_logprobs_T, 0.0).sum() / num_trained
    return LossOutput(
        loss,
        {
            "kept_share": keep_T.sum() / num_trained,
            "clipped_low_share": low_T.sum() / num_trained,
            "clipped_high_share": high_T.sum() / num_trained,
            "ratio_mean": torch.where(loss_mask_T, ratio_T, 0.0).sum() / num_trained,
            "log_ratio_abs_max": _largest(log_ratio_T.abs()),
        },
    )


def kl_k2_loss(
    policy_logprobs_T: Tensor,
    ref_logprobs_T: Tensor,
    behavior_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    *,
    weights_T: Tensor | None = None,
    max_ratio: float = 5.0,
    num_tokens: float | None = None,
) -> LossOutput:
    """k2 as a loss: 1/N sum of ratio w d^2 / 2, d = log(policy / ref), ratio and w detached.

    Its expected gradient is that of KL(policy || ref), token by token; k1 as a loss has none and
    k3 gives the forward KL's. The ratio to behavior is cut at `max_ratio`, never dropped: a
    token that drifted far is still pulled back. `weights_T` is the exploration weight alone, as
    KL does not depend on feedback (None: ones). Metrics: the k1 and k3 estimates of KL, in nats.
    """
    num_trained = _divisor(loss_mask_T, num_tokens)
    log_ratio_T = _log_ratio(policy_logprobs_T, behavior_logprobs_T, loss_mask_T)
    ratio_T = _clamped_exp(log_ratio_T).clamp(max=max_ratio)
    if weights_T is not None:
        ratio_T = torch.where(loss_mask_T, ratio_T * weights_T, 0.0).detach()
    k1_T = torch.where(loss_mask_T, policy_logprobs_T - ref_logprobs_T, 0.0)
    loss = (ratio_T * k1_T.square() / 2).sum() / num_trained
    k1_T = k1_T.detach()
    k3_T = torch.expm1((-k1_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) + k1_T
    return LossOutput(
        loss,
        {
            "kl_k1": (ratio_T * k1_T).sum() / num_trained,
            "kl_k3": (ratio_T * k3_T).sum() / num_trained,
        },
    )


def _divisor(loss_mask_T: Tensor, num_tokens: float | None) -> Tensor | float:
    if num_tokens is None:
        return loss_mask_T.sum().clamp(min=1)  # an empty mask gives zero, not nan
    if not num_tokens > 0:
        raise ValueError(f"num_tokens: expected a positive divisor, got {num_tokens}")
    return num_tokens


def _log_ratio(policy_logprobs_T: Tensor, behavior_logprobs_T: Tensor, mask_T: Tensor) -> Tensor:
    return torch.where(mask_T, (policy_logprobs_T - behavior_logprobs_T).detach(), 0.0)


def _clamped_exp(log_ratio_T: Tensor) -> Tensor:
    return log_ratio_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _largest(values_T: Tensor) -> Tensor:
    return torch.cat((values_T, values_T.new_zeros(1))).amax()  # amax refuses an empty tensor
