"""Keys and values by slot: one fixed stretch of memory for each request, on every layer.

Shapes: L = layers, S = slots, B = rows of this step, Q = new positions, H = key-value heads,
C = context capacity, K = positions seen in this step, D = head size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedConfig


class KeyValueSlots:
    """The cache that `transformers` attention layers call; `select` says where a step writes."""

    def __init__(self, config: PreTrainedConfig, num_slots: int, capacity: int) -> None:
        head_size = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self.num_slots, self.capacity = num_slots, capacity
        self.padding_position = capacity  # one column more: padded queries write there
        num_layers, num_heads = config.num_hidden_layers, config.num_key_value_heads
        self._all = torch.zeros(num_layers, 2, num_slots, num_heads, capacity + 1, head_size)
        self._keys_and_values = [(layer[0], layer[1]) for layer in self._all]  # each [S, H, C, D]
        self._rows: slice | Tensor = slice(0, 0)
        self._index: tuple[Tensor, slice, Tensor] | None = None
        self._reach = 0

    def select(self, slots: Sequence[int], positions_BQ: Tensor, reach: int) -> Tensor:
        """The next forward pass writes `positions_BQ` of `slots` and sees K = `reach` positions.

        Returns the additive mask [B, 1, Q, K]. Consecutive slots are read in place; others cost a
        copy of all that the step sees.
        """
        rows_B = torch.tensor(slots)
        is_consecutive = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        self._rows = slice(slots[0], slots[0] + len(slots)) if is_consecutive else rows_B
        self._index = (rows_B[:, None], slice(None), positions_BQ)
        self._reach = reach
        unseen_BQK = torch.arange(reach) > positions_BQ[:, :, None]
        mask_BQK = torch.zeros(unseen_BQK.shape).masked_fill_(unseen_BQK, -torch.inf)
        return mask_BQK[:, None]

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Store [B, H, Q, D]; return both [B, H, K, D]."""
        all_keys, all_values = self._keys_and_values[layer_idx]
        all_keys[self._index] = keys.transpose(1, 2)
        all_values[self._index] = values.transpose(1, 2)
        return all_keys[self._rows, :, : self._reach], all_values[self._rows, :, : self._reach]

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """The first `num_tokens` positions of one slot, into another."""
        self._all[:, :, target, :, :num_tokens] = self._all[:, :, source, :, :num_tokens]

    def exchange(self, a: int, num_a: int, b: int, num_b: int) -> None:
        """Slot `a` with `num_a` tokens and slot `b` with `num_b` change places."""
        kept = self._all[:, :, a, :, :num_a].clone() if num_a else None
        if num_b:
            self.copy(b, a, num_b)
        if kept is not None:
            self._all[:, :, b, :, :num_a] = kept
