"""One forward pass of the model for the tokens that requests have pending.

Shapes: B = rows, Q = pending tokens of the longest row, K = positions seen, H = query heads,
G = key-value heads, D = head size or hidden size, V = vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from serving.torch_engine.kv_slots import KeyValueSlots
from serving.torch_engine.running import Running


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """Let the model use `grouped_attention`. Raises ValueError where it would be another model."""
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(f"expected full attention on every layer, got {', '.join(sorted(kinds))}")
    AttentionInterface.register("grouped", grouped_attention)
    model.set_attn_implementation("grouped")
    return model


def grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Tensor | None, scaling: float | None = None, **_: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """[B, H, Q, D] against [B, G, K, D]; returns [B, Q, H, D].

    Query heads share key-value heads without a copy of them; in a decode step (Q = 1) the heads
    of a group stand where queries of one head would.
    """
    shape = query.shape
    if shape[2] == 1:
        query = query.reshape(shape[0], key.shape[1], -1, shape[3])
    attended = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return attended.reshape(shape).transpose(1, 2), None


def last_logits(
    model: PreTrainedModel, cache: KeyValueSlots, rows: Sequence[Running], slots: Sequence[int]
) -> Tensor:
    """[B, V] logits after the last token of each row; its pending tokens are in its slot then."""
    pending = [row.token_ids[row.num_cached :] for row in rows]
    width = max(map(len, pending))
    fill = [width - len(ids) for ids in pending]
    ids_BQ = torch.tensor([ids + [0] * n for ids, n in zip(pending, fill, strict=True)])
    positions_BQ = torch.tensor(
        [
            [*range(row.num_cached, len(row.token_ids)), *[cache.padding_position] * n]
            for row, n in zip(rows, fill, strict=True)
        ]
    )
    mask = cache.select(slots, positions_BQ, max(len(row.token_ids) for row in rows))
    hidden_BQD = model.base_model(
        input_ids=ids_BQ, position_ids=positions_BQ, attention_mask=mask, past_key_values=cache,
        use_cache=True,
    ).last_hidden_state  # fmt: skip
    last_B = torch.tensor([len(ids) - 1 for ids in pending])
    logits_BV: Tensor = model.get_output_embeddings()(hidden_BQD[torch.arange(len(rows)), last_B])
    return logits_BV
