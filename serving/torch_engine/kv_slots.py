"""Keys and values of the running requests: one fixed slot each, so that rows come and go freely.

Shapes: S = slots, B = rows of this step, Q = new positions, H = key-value heads, C = context
capacity, D = head size.
"""

import torch
from torch import Tensor
from transformers import PreTrainedConfig


class KeyValueSlots:
    """The cache that `transformers` attention layers call; `select` says where a step writes."""

    def __init__(self, config: PreTrainedConfig, num_slots: int, capacity: int) -> None:
        head_size = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self.capacity = capacity
        shape = (num_slots, config.num_key_value_heads, capacity, head_size)
        layers = range(config.num_hidden_layers)
        self._keys = [torch.zeros(shape) for _ in layers]  # each [S, H, C, D]
        self._values = [torch.zeros(shape) for _ in layers]
        self._rows_B = torch.zeros(0, dtype=torch.long)
        self._positions_BQ = torch.zeros(0, 0, dtype=torch.long)

    def select(self, slots: list[int], positions_BQ: Tensor) -> Tensor:
        """The next forward pass writes `positions_BQ` of `slots`; returns its mask [B, 1, Q, K]."""
        self._rows_B = torch.tensor(slots)
        self._positions_BQ = positions_BQ
        reach = int(positions_BQ.max()) + 1
        mask_BQK = torch.arange(reach)[None, None, :] <= positions_BQ[:, :, None]
        return mask_BQK[:, None]

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Store [B, H, Q, D]; return [B, H, K, D] up to the furthest position of this step."""
        reach = int(self._positions_BQ.max()) + 1
        return (
            self._store(self._keys[layer_idx], keys, reach),
            self._store(self._values[layer_idx], values, reach),
        )

    def _store(self, cache: Tensor, new: Tensor, reach: int) -> Tensor:
        cache[self._rows_B[:, None], :, self._positions_BQ] = new.transpose(1, 2)
        return cache[self._rows_B, :, :reach]
