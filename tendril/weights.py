"""Weights as bytes: safetensors files and the digest of what is in them, without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from blake3 import blake3
from safetensors import SafetensorError, TensorSpec, deserialize, serialize

from tendril.files import write_whole

SERIALIZE_NAMES: Mapping[str, str] = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E8M0": "float8_e8m0fnu", "I16": "int16",
    "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32",
    "F32": "float32", "I64": "int64", "U64": "uint64", "F64": "float64", "C64": "complex64",
}  # fmt: skip
"""Each dtype as a file spells it, to what `serialize` calls it. Packed 4-bit ones are left out."""


class TensorBytes(NamedTuple):
    """One tensor, little-endian, row-major."""

    dtype: str
    """As safetensors spells it: BF16, F32, F8_E4M3, ..."""
    shape: tuple[int, ...]
    data: bytes


class InvalidWeights(ValueError):
    """A file that is not a whole safetensors file, or tensors that cannot become one."""


def read_weights(path: Path) -> dict[str, TensorBytes]:
    """All tensors of a safetensors file, by name; raises `InvalidWeights` naming the file."""
    return decode_weights(path.read_bytes(), str(path))


def write_weights(path: Path, tensors: Mapping[str, TensorBytes]) -> None:
    """Write a safetensors file, whole; the same tensors always give the same bytes."""
    write_whole(path, encode_weights(tensors))


def decode_weights(data: bytes, source: str) -> dict[str, TensorBytes]:
    """Tensors from the bytes of a safetensors file; `source` names them in `InvalidWeights`."""
    try:
        found = deserialize(data)
    except SafetensorError as error:
        raise InvalidWeights(
            f"{source}: expected a whole safetensors file, got {len(data)} bytes: {error}"
        ) from error
    tensors = {
        name: TensorBytes(view["dtype"], tuple(view["shape"]), bytes(view.pop("data")))
        for name, view in found
    }
    for name, tensor in tensors.items():
        if tensor.dtype not in SERIALIZE_NAMES:
            raise InvalidWeights(f"{source}: {name} has unsupported dtype {tensor.dtype}")
    return dict(sorted(tensors.items()))


def encode_weights(tensors: Mapping[str, TensorBytes]) -> bytes:
    """The bytes of a safetensors file that transformers and vLLM load."""
    # The specs hold addresses only, so the arrays must outlive the call.
    arrays = {name: np.frombuffer(tensors[name].data, np.uint8) for name in sorted(tensors)}
    specs: dict[str, TensorSpec] = {}
    for name, array in arrays.items():
        dtype, shape, _ = tensors[name]
        if dtype not in SERIALIZE_NAMES:
            raise InvalidWeights(f"{name}: unsupported dtype {dtype}")
        specs[name] = TensorSpec(
            dtype=SERIALIZE_NAMES[dtype],
            shape=shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
    try:
        return serialize(specs, {"format": "pt"})
    except SafetensorError as error:
        sizes = {name: (t.dtype, t.shape, len(t.data)) for name, t in tensors.items()}
        raise InvalidWeights(f"dtype, shape and bytes disagree in {sizes}: {error}") from error


def weights_digest(tensors: Mapping[str, TensorBytes]) -> str:
    """BLAKE3 (hex) over sorted names, dtypes, shapes and bytes, each with its length before it."""
    hasher = blake3()
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        for part in (name.encode(), dtype.encode(), ",".join(map(str, shape)).encode(), data):
            hasher.update(len(part).to_bytes(8, "little"))
            hasher.update(part)
    return hasher.hexdigest()
