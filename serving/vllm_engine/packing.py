"""Packed weights on a CPU: kept beside the plain ones, and exchanged whole when weights change.

vLLM packs each linear layer's weight for oneDNN, which is half again as fast, and throws the plain
one away. Here it stays, as what patches are compared with and written to. A change packs anew
while it is staged, from a patched copy, so that only pointers move while requests are held.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers import utils as layers

Linear = Callable[..., Tensor]
_pack = layers.dispatch_cpu_unquantized_gemm


def keep_plain_weights() -> None:
    """Before a model loads: packing leaves the layer its weight. Repeating it changes nothing."""

    def pack(layer: nn.Module, remove_weight: bool) -> None:
        del remove_weight
        _pack(layer, remove_weight=False)

    layers.dispatch_cpu_unquantized_gemm = pack


@dataclass(frozen=True, slots=True)
class Exchange:
    """One parameter's new values, and the layers that hold a packed copy of it."""

    parameter: nn.Parameter
    new: Tensor
    old: Tensor
    layers: list[tuple[Any, Linear, Linear]]
    """Each with its new and its old packed form."""

    def apply(self) -> None:
        self.parameter.data = self.new
        for layer, packed, _ in self.layers:
            layer.cpu_linear = packed

    def undo(self) -> None:
        self.parameter.data = self.old
        for layer, _, packed in self.layers:
            layer.cpu_linear = packed


def exchange(model: nn.Module, parameter: nn.Parameter, new: Tensor) -> Exchange:
    """From what `parameter` is now to `new`, packed for every layer of `model` that packs it."""
    packing = [
        (layer, packed(layer, new), layer.cpu_linear) for layer in _packers(model, parameter)
    ]
    return Exchange(parameter, new, parameter.data, packing)


def packed(layer: nn.Module, weight: Tensor) -> Linear:
    """What `layer` would compute with if it had been loaded with `weight`."""
    stand_in: Any = SimpleNamespace(weight=weight, bias=getattr(layer, "bias", None))
    _pack(stand_in, remove_weight=False)
    linear: Linear = stand_in.cpu_linear
    return linear


def _packers(model: nn.Module, parameter: nn.Parameter) -> Iterator[Any]:
    """Layers that pack it: more than one where input and output embeddings are tied."""
    for layer in model.modules():
        linear = getattr(layer, "cpu_linear", None)
        is_packed = linear is not None and linear is not torch.nn.functional.linear
        if is_packed and layer.weight is parameter:
            yield layer
