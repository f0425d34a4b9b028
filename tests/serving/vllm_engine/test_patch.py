"""Patches between checkpoint folders: what changes, from what to what, and what is refused."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.vllm_engine.patch import BITS, INDEX, NEW, OLD, write_patch
from tendril.weights import InvalidWeights, TensorBytes, read_weights, weights_digest, write_weights

WORDS = st.lists(st.integers(0, 0x3F80), min_size=1, max_size=40)


def folder(path: Path, **tensors: TensorBytes) -> Path:
    write_weights(path / "model.safetensors", tensors)
    return path


def bf16(*bits: int) -> TensorBytes:
    return TensorBytes("BF16", (len(bits),), np.array(bits, np.uint16).tobytes())


def words(tensor: TensorBytes) -> list[int]:
    found: list[int] = np.frombuffer(tensor.data, BITS.get(tensor.dtype, np.int64)).tolist()
    return found


def test_a_sparse_change_names_positions_old_and_new(tmp_path: Path) -> None:
    base = folder(tmp_path / "1", a=bf16(*range(100, 120)), b=bf16(5))
    target = folder(tmp_path / "2", a=bf16(*range(100, 117), 9, 118, 8), b=bf16(5))
    patch = write_patch(tmp_path / "patch", base, target)
    found = {name: words(tensor) for name, tensor in read_weights(patch.path).items()}
    assert found == {f"a{INDEX}": [17, 19], f"a{OLD}": [117, 119], f"a{NEW}": [9, 8]}
    assert patch.num_changed == 2
    assert patch.weights_digest == weights_digest(read_weights(target / "model.safetensors"))


@given(old=WORDS, data=st.data())
def test_old_plus_patch_is_new(old: list[int], data: st.DataObject) -> None:
    new = [data.draw(st.sampled_from([word, word, 0x3F81])) for word in old]
    with tempfile.TemporaryDirectory() as place:
        base = folder(Path(place, "1"), a=bf16(*old))
        target = folder(Path(place, "2"), a=bf16(*new))
        parts = read_weights(write_patch(Path(place, "patch"), base, target).path)
    result = list(old)
    if f"a{INDEX}" in parts:
        index, before = words(parts[f"a{INDEX}"]), words(parts[f"a{OLD}"])
        assert [result[i] for i in index] == before
        for i, value in zip(index, words(parts[f"a{NEW}"]), strict=True):
            result[i] = value
    elif parts:
        assert words(parts[f"a{OLD}"]) == old
        result = words(parts[f"a{NEW}"])
    assert result == new


def test_without_a_base_everything_is_new(tmp_path: Path) -> None:
    target = folder(tmp_path / "2", a=bf16(1, 2, 3))
    patch = write_patch(tmp_path / "patch", None, target)
    assert {n: words(t) for n, t in read_weights(patch.path).items()} == {f"a{NEW}": [1, 2, 3]}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"b": bf16(1, 2)}, "expected the model's tensors"),
        ({"a": bf16(1, 2, 3)}, r"a: expected \('BF16', \(2,\)\)"),
        ({"a": TensorBytes("F16", (2,), bytes(4))}, "expected .*'BF16'"),
        ({"a": TensorBytes("I64", (2,), bytes(16))}, "a: expected one of BF16"),
        ({"a": bf16(1, 0x7F80)}, "expected finite numbers"),
        ({"a": bf16(1, 0xFFC1)}, "expected finite numbers"),
    ],
)
def test_another_model_or_no_number_is_refused(
    tmp_path: Path, tensors: dict[str, TensorBytes], message: str
) -> None:
    base = folder(tmp_path / "1", a=bf16(1, 2))
    with pytest.raises(InvalidWeights, match=message):
        write_patch(tmp_path / "patch", base, folder(tmp_path / "2", **tensors))
    assert not (tmp_path / "patch").exists()
