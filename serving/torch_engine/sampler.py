"""Draws one token for each row. Shapes: B = rows, V = vocabulary."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Row(NamedTuple):
    """How one row of logits is to be sampled."""

    temperature: float
    top_p: float
    generator: torch.Generator | None
    is_first: bool
    forbid_silence: bool


class Draw(NamedTuple):
    """Sampled tokens and what the policy thought of them."""

    tokens_B: Tensor
    logprobs_B: Tensor
    """Of the sampled tokens, after temperature, before exploration and top-p."""
    silence_logprobs_B: Tensor | None


def draw(logits_BV: Tensor, rows: Sequence[Row], silence_token_id: int | None) -> Draw:
    """Sample every row; temperature 0 is greedy. Silence is a choice for first tokens only."""
    temperature_B = torch.tensor([row.temperature or 1.0 for row in rows])
    logits_BV = logits_BV.float() / temperature_B[:, None]
    silence_logprobs_B = None
    if silence_token_id is not None:
        later_B = torch.tensor([not row.is_first for row in rows])
        logits_BV[later_B, silence_token_id] = -torch.inf
    logprobs_BV = logits_BV.log_softmax(-1)
    allowed_BV = logprobs_BV
    if silence_token_id is not None:
        silence_logprobs_B = logprobs_BV[:, silence_token_id]
        forced_B = torch.tensor([row.is_first and row.forbid_silence for row in rows])
        allowed_BV = logprobs_BV.clone()
        allowed_BV[forced_B, silence_token_id] = -torch.inf
    for i, row in enumerate(rows):
        if row.top_p < 1.0:
            allowed_BV[i] = keep_nucleus(allowed_BV[i], row.top_p)
    tokens_B = (allowed_BV + _noise(logits_BV.shape, rows)).argmax(-1)
    return Draw(tokens_B, logprobs_BV.gather(1, tokens_B[:, None]).squeeze(1), silence_logprobs_B)


def keep_nucleus(logprobs_V: Tensor, top_p: float) -> Tensor:
    """Mask all but the smallest set of tokens whose probability reaches `top_p`."""
    ordered_V, order_V = logprobs_V.softmax(-1).sort(descending=True)
    outside_V = ordered_V.cumsum(-1) - ordered_V >= top_p
    return logprobs_V.index_fill(0, order_V[outside_V], -torch.inf)


def _noise(shape: torch.Size, rows: Sequence[Row]) -> Tensor:
    """Gumbel noise, so that argmax samples; zero for greedy rows, seeded where asked."""
    uniform_BV = torch.rand(shape)
    for i, row in enumerate(rows):
        if row.generator is not None:
            uniform_BV[i] = torch.rand(shape[1], generator=row.generator)
    noise_BV = -torch.log(-torch.log(uniform_BV.clamp(1e-20, 1 - 1e-7)))
    noise_BV[torch.tensor([row.temperature == 0 for row in rows])] = 0.0
    return noise_BV
