"""Checkpoint tensors into a running torch model, and back out as bytes for their digest."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tendril.model_folder import WEIGHTS_FILE
from tendril.weights import InvalidWeights, TensorBytes, read_weights, weights_digest

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


class StagedWeights:
    """One version's tensors, converted and checked, ready to be copied into the model."""

    def __init__(self, folder: Path, model: nn.Module) -> None:
        """Raises `InvalidWeights` where the folder does not fit the model."""
        stored = read_weights(folder / WEIGHTS_FILE)
        self.digest = weights_digest(stored)
        self.dtypes = {name: tensor.dtype for name, tensor in stored.items()}
        parameters = dict(model.named_parameters())
        missing = sorted(parameters.keys() ^ stored.keys())
        if missing:
            raise InvalidWeights(
                f"{folder}: expected the model's tensors, got other: {missing[:3]}"
            )
        self._tensors: dict[str, Tensor] = {}
        for name, tensor in stored.items():
            if tensor.shape != tuple(parameters[name].shape):
                raise InvalidWeights(
                    f"{folder}, {name}: expected shape {tuple(parameters[name].shape)}, "
                    f"got {tensor.shape}"
                )
            self._tensors[name] = _decoded(tensor, parameters[name].dtype, f"{folder}, {name}")

    @torch.no_grad()
    def apply(self, model: nn.Module) -> None:
        """Overwrite the model's parameters in place: a copy, no allocation."""
        for name, parameter in model.named_parameters():
            parameter.copy_(self._tensors[name])


def _decoded(stored: TensorBytes, dtype: torch.dtype, source: str) -> Tensor:
    if stored.dtype not in DTYPES:
        raise InvalidWeights(f"{source}: expected one of {', '.join(DTYPES)}, got {stored.dtype}")
    tensor = torch.frombuffer(bytearray(stored.data), dtype=DTYPES[stored.dtype])
    if not tensor.isfinite().all():
        raise InvalidWeights(f"{source}: expected finite numbers, got NaN or infinity")
    return tensor.reshape(stored.shape).to(dtype)


def runtime_digest(model: nn.Module, dtypes: Mapping[str, str]) -> str:
    """Digest of what the model computes with, in the stored dtypes: equals the file's digest."""
    return weights_digest(
        {
            name: TensorBytes(
                dtypes[name], tuple(p.shape), tensor_bytes(p.detach().to(DTYPES[dtypes[name]]))
            )
            for name, p in model.named_parameters()
        }
    )


def tensor_bytes(tensor: Tensor) -> bytes:
    """The little-endian bytes of a contiguous copy."""
    return tensor.contiguous().view(_BITS[tensor.dtype]).numpy().tobytes()
