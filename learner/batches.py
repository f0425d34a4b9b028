"""From episodes to the tensors of one optimizer step; what cannot be used is dropped by name.

Shapes: B = decisions, T = their completion tokens, packed in order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.exploration import exploration_weight
from kernels.scoring import Scorable
from tendril.records import Episode, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """What the learner can use at this moment."""

    policy_version: int
    max_policy_lag: int
    tokenizer_digest: str
    vocab_size: int
    max_context_tokens: int
    silence_token_id: int | None


def drop_reason(episode: Episode, eligible: Eligibility) -> str | None:
    """Why the learner leaves this episode out, or None where it trains on it."""
    if not episode.train_consent:
        return "no consent"
    if episode.held_out:
        return "held out"
    if episode.untrainable:
        return f"untrainable: {episode.untrainable}"
    if episode.tokenizer_digest != eligible.tokenizer_digest:
        return "other tokenizer"
    if episode.reward is None:
        return "unlabelled"
    if episode.weight == 0 or not any(any(s.loss_mask) for s in episode.segments):
        return "nothing to train"
    if not -1 <= episode.reward <= 1 or not 0 < episode.weight < math.inf:
        return "malformed"
    if not all(_fits(segment, eligible) for segment in episode.segments):
        return "malformed"
    if eligible.policy_version - oldest_version(episode) > eligible.max_policy_lag:
        return "policy lag"
    return None


def _fits(segment: Segment, eligible: Eligibility) -> bool:
    """Whether the model can score it; a single segment that it cannot would stop the learner."""
    prompt, completion = segment.prompt_token_ids, segment.completion_token_ids
    return (
        segment.is_sound
        and len(prompt) + len(completion) <= eligible.max_context_tokens
        and max(prompt + completion) < eligible.vocab_size
        and eligible.silence_token_id not in completion[1:]
    )


def oldest_version(episode: Episode) -> int:
    """The oldest weights that sampled a token of it."""
    return min(span.policy_version for s in episode.segments for span in s.policy_spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """One optimizer step's decisions."""

    items: Sequence[Scorable]  # [B]
    behavior_logprobs_T: Tensor
    credits_T: Tensor
    loss_mask_T: Tensor
    num_tokens_B: Tensor
    exploration_B: Tensor
    """Exploration weight of each decision."""
    observation_B: Tensor
    """Observation weight of each decision's episode."""
    versions_B: tuple[int | None, ...]
    """The one version that sampled it; None where weights changed in the middle."""


def build_batch(episodes: Sequence[Episode], silence_token_id: int | None) -> TrainingBatch:
    """Pack all segments of `episodes`, in order."""
    segments = [(episode, segment) for episode in episodes for segment in episode.segments]
    only = [segment for _, segment in segments]
    return TrainingBatch(
        items=[Scorable(s.prompt_token_ids, s.completion_token_ids, s.temperature) for s in only],
        behavior_logprobs_T=torch.tensor([x for s in only for x in s.behavior_logprobs]),
        credits_T=torch.tensor([x for s in only for x in s.credit]),
        loss_mask_T=torch.tensor([x for s in only for x in s.loss_mask]),
        num_tokens_B=torch.tensor([len(s.completion_token_ids) for s in only]),
        exploration_B=torch.tensor([_exploration(s, silence_token_id) for s in only]),
        observation_B=torch.tensor([e.weight for e, _ in segments]),
        versions_B=tuple(_single_version(s) for s in only),
    )


def _exploration(segment: Segment, silence_token_id: int | None) -> float:
    if segment.exploration is None:
        return 1.0
    share, silence_logprob = segment.exploration.share, segment.exploration.silence_logprob
    is_silent = segment.completion_token_ids[0] == silence_token_id
    return exploration_weight(share, silence_logprob, is_silent)


def _single_version(segment: Segment) -> int | None:
    versions = {span.policy_version for span in segment.policy_spans}
    return versions.pop() if len(versions) == 1 else None
