"""Advantages of the online lane. Shapes: T = packed tokens, B = decisions, in the same order."""

import torch
from torch import Tensor


def online_advantages(
    credits_T: Tensor,
    loss_mask_T: Tensor,
    baselines_B: Tensor,
    weights_B: Tensor,
    num_tokens_B: Tensor,
    *,
    min_rms: float = 0.1,
) -> Tensor:
    """(credit - baseline) / RMS as [T], zero where the mask is False. No group, no centring.

    Decision b owns `num_tokens_B[b]` consecutive tokens. The RMS is over the trained tokens of
    the whole batch, each with its decision's weight (the loss's own divisor and weights), so the
    lane enters the step at unit scale. Below `min_rms` (reward units) it is not blown up.
    Raises ValueError unless `num_tokens_B` sums to T.
    """
    num_tokens = int(num_tokens_B.sum())
    if num_tokens != credits_T.numel():
        raise ValueError(
            f"num_tokens_B: expected a sum of {credits_T.numel()} credits, got {num_tokens}"
        )
    errors_T = credits_T - baselines_B.repeat_interleave(num_tokens_B)
    errors_T = torch.where(loss_mask_T, errors_T, 0.0)
    weights_T = torch.where(loss_mask_T, weights_B.repeat_interleave(num_tokens_B), 0.0)
    total = weights_T.sum()
    mean_square = torch.where(total > 0, (weights_T * errors_T.square()).sum() / total, 0.0)
    return errors_T / mean_square.sqrt().clamp(min=min_rms)
