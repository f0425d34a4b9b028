"""A weight change as a file: which elements of which checkpoint tensors change, from what to what.

Made in the serving process from two checkpoint folders, read by every worker. With the old values
beside the new ones a worker can prove that it holds the base, and can take the change back. A
tensor named `NAME|new` holds new values in the stored dtype; `NAME|index` (int64, positions in the
flattened tensor) and `NAME|old` belong to it where the change is sparse.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tendril.model_folder import WEIGHTS_FILE
from tendril.weights import InvalidWeights, TensorBytes, read_weights, weights_digest, write_weights

BITS: Mapping[str, type[np.unsignedinteger]] = {
    "BF16": np.uint16, "F16": np.uint16, "F32": np.uint32, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8,
}  # fmt: skip
MAX_SPARSE_SHARE = 0.25
"""Above it, positions cost more than they save."""
INDEX, OLD, NEW = "|index", "|old", "|new"


class Patch(NamedTuple):
    """A patch file and what it is about."""

    path: Path
    weights_digest: str
    """Of the version it leads to."""
    num_changed: int


def write_patch(path: Path, base: Path | None, target: Path) -> Patch:
    """The change from folder `base` to folder `target`; everything is new without a base.

    Raises `InvalidWeights` where the two are not the same model, or a number is not finite.
    """
    new = read_weights(target / WEIGHTS_FILE)
    old = read_weights(base / WEIGHTS_FILE) if base is not None else {}
    if old and (old.keys() != new.keys()):
        odd = sorted(old.keys() ^ new.keys())[:3]
        raise InvalidWeights(f"{target}: expected the model's tensors, got other: {odd}")
    tensors: dict[str, TensorBytes] = {}
    num_changed = 0
    for name, tensor in new.items():
        if tensor.dtype not in BITS:
            known = ", ".join(BITS)
            raise InvalidWeights(f"{target}, {name}: expected one of {known}, got {tensor.dtype}")
        if old and old[name][:2] != tensor[:2]:
            raise InvalidWeights(f"{target}, {name}: expected {old[name][:2]}, got {tensor[:2]}")
        parts = _changes(old.get(name), tensor)
        _refuse_non_finite(parts[NEW], f"{target}, {name}")
        num_changed += parts[NEW].shape[0]
        tensors |= {name + part: value for part, value in parts.items() if value.shape[0]}
    write_weights(path, tensors)
    return Patch(path, weights_digest(new), num_changed)


def _changes(old: TensorBytes | None, new: TensorBytes) -> dict[str, TensorBytes]:
    bits = BITS[new.dtype]
    new_bits = np.frombuffer(new.data, bits)
    if old is None:
        return {NEW: _flat(new.dtype, new_bits)}
    old_bits = np.frombuffer(old.data, bits)
    index = np.flatnonzero(old_bits != new_bits)
    if index.size > MAX_SPARSE_SHARE * new_bits.size:
        return {OLD: _flat(new.dtype, old_bits), NEW: _flat(new.dtype, new_bits)}
    return {
        INDEX: _flat("I64", index.astype(np.int64)),
        OLD: _flat(new.dtype, old_bits[index]),
        NEW: _flat(new.dtype, new_bits[index]),
    }


def _flat(dtype: str, values: NDArray[np.generic]) -> TensorBytes:
    return TensorBytes(dtype, (values.size,), values.tobytes())


EXPONENTS = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}


def _refuse_non_finite(values: TensorBytes, source: str) -> None:
    mask = EXPONENTS.get(values.dtype)
    if mask is None:
        return
    bits = np.frombuffer(values.data, BITS[values.dtype])
    if bool(((bits & mask) == mask).any()):
        raise InvalidWeights(f"{source}: expected finite numbers, got NaN or infinity")
