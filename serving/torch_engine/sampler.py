"""Draws one token for each row. Shapes: B = rows, V = vocabulary, N = its blocks, T = one block."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK_TOKENS = 64
BELOW_ONE = 1 - 1e-12  # a share of 1 would point behind the last token that has any mass


class Row(NamedTuple):
    """How one row of logits is to be sampled."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    generator: torch.Generator | None = None
    is_first: bool = True
    forbid_silence: bool = False
    num_top_logprobs: int = 0

    @property
    def is_filtered(self) -> bool:
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


class Draw(NamedTuple):
    """Sampled tokens and what the policy thought of them."""

    tokens_B: Tensor
    logprobs_B: Tensor
    """Of the sampled tokens, after temperature, before exploration and filters."""
    silence_logprobs_B: Tensor | None
    top_logprobs: list[tuple[tuple[int, float], ...]]
    """For each row, under the same policy, as many as asked for."""


def draw(logits_BV: Tensor, rows: Sequence[Row], silence_token_id: int | None) -> Draw:
    """Sample every row; temperature 0 is greedy. Silence is a choice for first tokens only."""
    temperature_B = torch.tensor([row.temperature or 1.0 for row in rows])
    logits_BV = logits_BV.float() / temperature_B[:, None]
    silence_logprobs_B = None
    if silence_token_id is not None:
        later_B = torch.tensor([not row.is_first for row in rows])
        logits_BV[later_B, silence_token_id] = -torch.inf
    logprobs_BV = logits_BV.log_softmax(-1)
    if silence_token_id is not None:
        silence_logprobs_B = logprobs_BV[:, silence_token_id]
    tokens_B = _choose(allowed(logprobs_BV, rows, silence_token_id), rows)
    return Draw(
        tokens_B,
        logprobs_BV.gather(1, tokens_B[:, None]).squeeze(1),
        silence_logprobs_B,
        [_top(logprobs_BV[i], row.num_top_logprobs) for i, row in enumerate(rows)],
    )


def allowed(logprobs_BV: Tensor, rows: Sequence[Row], silence_token_id: int | None) -> Tensor:
    """Log-probs with -inf at what a row must not sample; not normalised again."""
    restricted = [i for i, row in enumerate(rows) if row.is_filtered or row.forbid_silence]
    if not restricted:
        return logprobs_BV
    allowed_BV = logprobs_BV.clone()
    for i in restricted:
        if rows[i].forbid_silence and silence_token_id is not None:
            allowed_BV[i, silence_token_id] = -torch.inf
        allowed_BV[i] = keep_likely(allowed_BV[i], rows[i])
    return allowed_BV


def keep_likely(logprobs_V: Tensor, row: Row) -> Tensor:
    """Min-p, then top-k, then top-p, as vLLM has it; what ties with the last one kept stays."""
    if row.min_p > 0.0:
        floor = logprobs_V.max() + torch.tensor(row.min_p).log()
        logprobs_V = logprobs_V.masked_fill(logprobs_V < floor, -torch.inf)
    if 0 < row.top_k < len(logprobs_V):
        floor = logprobs_V.topk(row.top_k).values[-1]
        logprobs_V = logprobs_V.masked_fill(logprobs_V < floor, -torch.inf)
    return keep_nucleus(logprobs_V, row.top_p) if row.top_p < 1.0 else logprobs_V


def keep_nucleus(logprobs_V: Tensor, top_p: float) -> Tensor:
    """Mask all but the smallest set of tokens whose probability reaches `top_p`."""
    ordered_V, order_V = logprobs_V.softmax(-1).sort(descending=True)
    outside_V = ordered_V.cumsum(-1) - ordered_V >= top_p
    return logprobs_V.index_fill(0, order_V[outside_V], -torch.inf)


def _top(logprobs_V: Tensor, num: int) -> tuple[tuple[int, float], ...]:
    if num == 0:
        return ()
    best = logprobs_V.topk(min(num, len(logprobs_V)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple((token, logprob) for token, logprob in pairs if logprob > -torch.inf)


def _choose(allowed_BV: Tensor, rows: Sequence[Row]) -> Tensor:
    is_greedy = [row.temperature == 0 for row in rows]
    if all(is_greedy):
        return allowed_BV.argmax(-1)
    uniform_B = torch.rand(len(rows), dtype=torch.float64)
    for i, row in enumerate(rows):
        if row.generator is not None:
            uniform_B[i] = torch.rand((), dtype=torch.float64, generator=row.generator)
    sampled_B = at_quantile(allowed_BV.softmax(-1), uniform_B)
    if not any(is_greedy):
        return sampled_B
    return torch.where(torch.tensor(is_greedy), allowed_BV.argmax(-1), sampled_B)


def at_quantile(probabilities_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The token at which each row's cumulative probability passes `uniform_B`.

    First the block, then the token in it: running sums over the whole vocabulary cost several
    times as much as all blocks' sums. In float64, lest rare tokens be lost in rounding.
    """
    num_tokens = probabilities_BV.shape[1]
    if num_tokens % BLOCK_TOKENS:
        probabilities_BV = pad(probabilities_BV, (0, -num_tokens % BLOCK_TOKENS))
    blocks_BNT = probabilities_BV.view(len(uniform_B), -1, BLOCK_TOKENS)
    block_B, rest_B = _locate(blocks_BNT.sum(-1).double(), uniform_B)
    tokens_BT = blocks_BNT[torch.arange(len(block_B)), block_B].double()
    return block_B * BLOCK_TOKENS + _locate(tokens_BT, rest_B)[0]


def _locate(masses_BN: Tensor, share_B: Tensor) -> tuple[Tensor, Tensor]:
    """Where the running sum passes that share of the total, and what share of that mass."""
    sums_BN = masses_BN.cumsum(-1)
    target_B1 = share_B.clamp(0.0, BELOW_ONE)[:, None] * sums_BN[:, -1:]
    found_B1 = torch.searchsorted(sums_BN, target_B1, right=True)
    mass_B1 = masses_BN.gather(1, found_B1)
    rest_B1 = (target_B1 - (sums_BN.gather(1, found_B1) - mass_B1)) / mass_B1
    return found_B1.squeeze(1), rest_B1.squeeze(1)
