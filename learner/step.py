"""One optimizer step of the online lane.

A = credit - baseline(context), the baseline read before it learns of the reward; unit RMS over the
batch; detached-ratio REINFORCE with a band against behavior_logprobs, plus k2 to the last shipped
policy (the anchor). The anchor's log-probs also measure serving against learning at lag 0.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kernels.scoring import completion_logprobs
from learner.advantages import online_advantages
from learner.baseline import context_keys
from learner.batches import TrainingBatch, build_batch
from learner.losses import kl_k2_loss, online_loss
from learner.state import LearnerState
from tendril.records import Episode
from tendril.settings import LearnerSettings


class NumericsGap(RuntimeError):
    """Serving and learning disagree on log-probs: nothing can be learned until they agree."""


def train_step(
    state: LearnerState,
    episodes: Sequence[Episode],
    anchor: PreTrainedModel,
    anchor_version: int,
    settings: LearnerSettings,
    silence_token_id: int | None,
) -> dict[str, float]:
    """Update `state` by one step on `episodes`; returns the step's metrics.

    Raises `NumericsGap`, and `FloatingPointError` for a gradient that is not finite; both before
    anything is changed.
    """
    batch = build_batch(episodes, silence_token_id)
    with torch.no_grad():
        ref_logprobs_T = completion_logprobs(anchor, batch.items, silence_token_id)
    gap = numerics_gap(batch, ref_logprobs_T, anchor_version)
    if gap is not None and not gap <= settings.max_numerics_gap:
        raise NumericsGap(
            f"policy version {anchor_version}: expected a mean log-prob difference to serving "
            f"of at most {settings.max_numerics_gap} nats, got {gap}"
        )
    baselines_B = _read_baseline(state, episodes)
    policy_logprobs_T = completion_logprobs(state.model, batch.items, silence_token_id)
    loss, metrics = batch_loss(batch, policy_logprobs_T, ref_logprobs_T, baselines_B, settings)
    metrics["grad_norm"] = _apply(state, loss, settings)
    metrics["reward"] = sum(e.reward or 0.0 for e in episodes) / len(episodes)
    if gap is not None:
        metrics["numerics_gap"] = gap
    _update_baseline(state, episodes, batch)
    state.num_steps += 1
    return metrics


def batch_loss(
    batch: TrainingBatch,
    policy_logprobs_T: Tensor,
    ref_logprobs_T: Tensor,
    baselines_B: Tensor,
    settings: LearnerSettings,
) -> tuple[Tensor, dict[str, float]]:
    """Policy loss plus KL, and the metrics of both."""
    weights_B = batch.exploration_B * batch.observation_B
    advantages_T = online_advantages(
        batch.credits_T, batch.loss_mask_T, baselines_B, weights_B, batch.num_tokens_B
    )
    policy_loss = online_loss(
        policy_logprobs_T,
        batch.behavior_logprobs_T,
        advantages_T,
        weights_B.repeat_interleave(batch.num_tokens_B),
        batch.loss_mask_T,
        ratio_low=settings.ratio_low,
        ratio_high=settings.ratio_high,
    )
    kl_loss = kl_k2_loss(
        policy_logprobs_T,
        ref_logprobs_T,
        batch.behavior_logprobs_T,
        batch.loss_mask_T,
        weights_T=batch.exploration_B.repeat_interleave(batch.num_tokens_B),
    )
    loss = policy_loss.loss + settings.kl_coefficient * kl_loss.loss
    metrics = policy_loss.metrics | kl_loss.metrics | {"loss": loss.detach()}
    return loss, {name: float(value) for name, value in metrics.items()}


def numerics_gap(batch: TrainingBatch, ref_logprobs_T: Tensor, anchor_version: int) -> float | None:
    """Mean |log-prob difference| to serving over tokens that the anchor itself sampled, nats.

    None where the batch has no such token.
    """
    at_lag_0_B = torch.tensor([version == anchor_version for version in batch.versions_B])
    at_lag_0_T = at_lag_0_B.repeat_interleave(batch.num_tokens_B)
    if not bool(at_lag_0_T.any()):
        return None
    return float((ref_logprobs_T - batch.behavior_logprobs_T)[at_lag_0_T].abs().mean())


def _read_baseline(state: LearnerState, episodes: Sequence[Episode]) -> Tensor:
    """[B]: each decision's baseline from what was known before the whole batch."""
    predictions = [(state.baseline.predict(context_keys(e)), len(e.segments)) for e in episodes]
    return torch.tensor([value for value, num_segments in predictions for _ in range(num_segments)])


def _update_baseline(
    state: LearnerState, episodes: Sequence[Episode], batch: TrainingBatch
) -> None:
    first = 0
    for episode in episodes:
        weight = episode.weight * float(batch.exploration_B[first])
        state.baseline.update(context_keys(episode), episode.reward or 0.0, weight)
        first += len(episode.segments)


def _apply(state: LearnerState, loss: Tensor, settings: LearnerSettings) -> float:
    """Backward, clip, step. A non-finite gradient changes nothing and is an error."""
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = float(torch.nn.utils.clip_grad_norm_(state.model.parameters(), settings.grad_clip))
    if not math.isfinite(norm):
        raise FloatingPointError(f"step {state.num_steps}: gradient norm is {norm}")
    state.optimizer.step()
    return norm
