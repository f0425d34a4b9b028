"""Weights files: what torch reads, deterministic, and never half read."""

from pathlib import Path

import pytest
import torch
from blake3 import blake3
from safetensors import safe_open

from tendril.weights import (
    InvalidWeights,
    TensorBytes,
    encode_weights,
    read_weights,
    weights_digest,
    write_weights,
)

TENSORS = {
    "b": TensorBytes("F32", (2, 1), bytes(range(8))),
    "a": TensorBytes("BF16", (3,), bytes.fromhex("803f 0080 c07f")),  # 1, -0, NaN
    "none": TensorBytes("F16", (0, 4), b""),
    "one": TensorBytes("F8_E4M3", (), b"\x38"),
}


def test_a_written_file_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_weights(path, TENSORS)
    assert read_weights(path) == TENSORS
    assert list(read_weights(path)) == ["a", "b", "none", "one"]


def test_torch_reads_the_file_as_a_torch_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_weights(path, TENSORS)
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("a")[0] == torch.tensor(1.0, dtype=torch.bfloat16)
        assert file.get_tensor("one").float() == 1.0


def test_the_order_of_the_tensors_does_not_change_the_bytes() -> None:
    turned = dict(reversed(TENSORS.items()))
    assert encode_weights(turned) == encode_weights(TENSORS)
    assert weights_digest(turned) == weights_digest(TENSORS)


def test_every_truncation_and_trailing_bytes_are_refused_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    whole = encode_weights(TENSORS)
    for data in [whole[:end] for end in range(len(whole))] + [whole + b"0", b"\xff" * 64]:
        path.write_bytes(data)
        with pytest.raises(InvalidWeights, match=r"model\.safetensors"):
            read_weights(path)


def test_tensors_that_do_not_fit_their_shape_cannot_be_written() -> None:
    with pytest.raises(InvalidWeights, match="disagree"):
        encode_weights({"a": TensorBytes("BF16", (3,), b"1234")})
    with pytest.raises(InvalidWeights, match="unsupported dtype F4"):
        encode_weights({"a": TensorBytes("F4", (2,), b"1")})


def test_the_digest_is_blake3_over_parts_with_their_lengths() -> None:
    def part(data: bytes) -> bytes:
        return len(data).to_bytes(8, "little") + data

    spelled = b"".join(map(part, [b"w", b"F32", b"2,1", bytes(8)]))
    tensors = {"w": TensorBytes("F32", (2, 1), bytes(8))}
    assert weights_digest(tensors) == blake3(spelled).hexdigest()


def test_name_dtype_shape_and_bytes_each_change_the_digest() -> None:
    tensor = TensorBytes("F32", (2, 1), bytes(8))
    variants = [
        {"w": tensor},
        {"v": tensor},
        {"w": tensor._replace(dtype="I32")},
        {"w": tensor._replace(shape=(1, 2))},
        {"w": tensor._replace(data=bytes(7) + b"\x01")},
    ]
    assert len({weights_digest(variant) for variant in variants}) == len(variants)
