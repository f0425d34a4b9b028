"""Log-probs of sampled tokens under a policy: the one forward pass of learner and gate.

Both serving and learning compute in float32 on bfloat16-valued weights, so at lag 0 they agree to
rounding. Shapes: N = scored completion tokens of a batch, V = vocabulary, T = one completion.
Logits are computed at completion positions only, never for prompts.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

MAX_BATCH_TOKENS = 8_192
MAX_PADDING = 0.5
MIN_BUCKET_TOKENS = 16
"""Rows up to here share a bucket whatever their lengths."""


class Scorable(NamedTuple):
    """One completion and how it was sampled."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]  # [T]
    temperature: float


class Comparison(NamedTuple):
    """Two policies on one completion."""

    candidate_logprobs_T: Tensor
    live_logprobs_T: Tensor
    kl_T: Tensor
    """KL(candidate || live) over the whole vocabulary at each position, nats."""
    candidate_silence: float
    """Probability of the silence token as first token; 0.0 without such a token."""
    live_silence: float


def load_policy(folder: Path) -> PreTrainedModel:
    """A causal language model from a Hugging Face checkpoint folder, float32, evaluation mode."""
    disable_progress_bar()  # "Loading weights: ..." would fill the logs of processes
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    return model


def silence_token_id(folder: Path, token: str | None) -> int | None:
    """The id of the silence token in the folder's tokenizer; None where there is no such token."""
    if token is None:
        return None
    token_id: int | None = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(token)
    return token_id


def full_logprobs(
    model: PreTrainedModel, items: Sequence[Scorable], silence_token_id: int | None
) -> Tensor:
    """[N, V] log-probs after temperature at each completion position, item by item.

    Silence is a choice for the first token only: later positions have it masked, as in serving.
    Raises ValueError for an empty prompt: nothing predicts its first token.
    """
    hidden_ND = _completion_hidden(model, items)
    logits_NV = model.get_output_embeddings()(hidden_ND).float()
    temperature_N = torch.cat([torch.full((len(i.completion),), i.temperature) for i in items])
    logits_NV = logits_NV / temperature_N[:, None]
    if silence_token_id is not None:
        first_N = torch.cat([torch.arange(len(i.completion)) == 0 for i in items])
        masked_N = torch.where(first_N, logits_NV[:, silence_token_id], -torch.inf)
        logits_NV = logits_NV.index_copy(1, torch.tensor([silence_token_id]), masked_N[:, None])
    logprobs_NV: Tensor = logits_NV.log_softmax(-1)
    return logprobs_NV


def _completion_hidden(model: PreTrainedModel, items: Sequence[Scorable]) -> Tensor:
    """[N, hidden] last states at the positions that predict each completion token."""
    if not all(item.prompt for item in items):
        raise ValueError("expected at least 1 prompt token in every item, got 0 in one")
    hidden: dict[int, Tensor] = {}
    for bucket in length_buckets([len(item.prompt) + len(item.completion) for item in items]):
        rows = [items[i].prompt + items[i].completion for i in bucket]
        ids_BL = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for b, row in enumerate(rows):  # padding on the right: causal attention never looks there
            ids_BL[b, : len(row)] = torch.tensor(row)
        hidden_BLD = model.base_model(input_ids=ids_BL, use_cache=False).last_hidden_state
        for b, i in enumerate(bucket):
            first = len(items[i].prompt) - 1
            hidden[i] = hidden_BLD[b, first : first + len(items[i].completion)]
    return torch.cat([hidden[i] for i in range(len(items))])


def length_buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Indices grouped by length, so that no row is padded by more than `MAX_PADDING` of its own.

    Rows of a batch differ widely in length; padded together most of the arithmetic is padding.
    """
    buckets: list[list[int]] = []
    shortest = 0.0
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if not buckets or lengths[i] > shortest * (1 + MAX_PADDING):
            buckets.append([])
            shortest = max(lengths[i], MIN_BUCKET_TOKENS)
        buckets[-1].append(i)
    return buckets


def completion_logprobs(
    model: PreTrainedModel, items: Sequence[Scorable], silence_token_id: int | None
) -> Tensor:
    """[N] log-probs of the sampled tokens, with gradient where the caller has it enabled."""
    tokens_N = torch.tensor([token for item in items for token in item.completion])
    logprobs_NV = full_logprobs(model, items, silence_token_id)
    return logprobs_NV.gather(1, tokens_N[:, None]).squeeze(1)


@torch.no_grad()
def compare(
    candidate: PreTrainedModel,
    live: PreTrainedModel,
    items: Sequence[Scorable],
    *,
    silence_token_id: int | None,
) -> list[Comparison]:
    """Both policies on every item, in order."""
    return [
        comparison
        for batch in batches(items)
        for comparison in _compare_batch(candidate, live, batch, silence_token_id)
    ]


def batches(items: Sequence[Scorable]) -> Iterator[Sequence[Scorable]]:
    """Consecutive slices of at most `MAX_BATCH_TOKENS` padded tokens, at least one item each."""
    start, width = 0, 0
    for end, item in enumerate(items):
        width = max(width, len(item.prompt) + len(item.completion))
        if end > start and width * (end - start + 1) > MAX_BATCH_TOKENS:
            yield items[start:end]
            start, width = end, len(item.prompt) + len(item.completion)
    if start < len(items):
        yield items[start:]


def _compare_batch(
    candidate: PreTrainedModel,
    live: PreTrainedModel,
    items: Sequence[Scorable],
    silence_token_id: int | None,
) -> Iterator[Comparison]:
    candidate_NV = full_logprobs(candidate, items, silence_token_id)
    live_NV = full_logprobs(live, items, silence_token_id)
    difference_NV = torch.where(candidate_NV > -torch.inf, candidate_NV - live_NV, 0.0)
    kl_N = (candidate_NV.exp() * difference_NV).sum(-1)
    tokens_N = torch.tensor([token for item in items for token in item.completion])
    rows_N = torch.arange(len(tokens_N))
    start = 0
    for item in items:
        span = slice(start, start + len(item.completion))
        silence = (0.0, 0.0)
        if silence_token_id is not None:
            silence = (
                float(candidate_NV[start, silence_token_id].exp()),
                float(live_NV[start, silence_token_id].exp()),
            )
        yield Comparison(
            candidate_NV[rows_N[span], tokens_N[span]],
            live_NV[rows_N[span], tokens_N[span]],
            kl_N[span],
            *silence,
        )
        start = span.stop
