"""Deltas are exact on every bit pattern, near the entropy bound, and refuse whatever is wrong."""

import tracemalloc
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from shipper import delta as delta_module
from shipper.delta import MAGIC, Delta, DeltaError, decode_delta, encode_delta
from shipper.groups import Group
from shipper.lattice import FORMATS, Bits, apply_steps, steps_between
from shipper.streams import Numbers, read_numbers, write_numbers
from tendril.weights import TensorBytes

Tensors = dict[str, TensorBytes]
DTYPES = sorted(FORMATS)


def make_tensor(dtype: str, bits: Bits) -> TensorBytes:
    return TensorBytes(dtype, (bits.size,), bits.tobytes())


def make_pair(num_elements: int, update: float, seed: int = 0) -> tuple[Tensors, Tensors]:
    """Normal weights of size 0.02 in bf16, before and after normal updates of size `update`."""
    rng = np.random.default_rng(seed)
    base = rng.normal(0, 0.02, num_elements)
    updated = base + rng.normal(0, update, num_elements)
    pair = [make_tensor("BF16", _to_bf16(weights)) for weights in (base, updated)]
    return {"w": pair[0]}, {"w": pair[1]}


def _density(base: Tensors, target: Tensors) -> float:
    base_N, target_N = (np.frombuffer(t["w"].data, np.uint16) for t in (base, target))
    return float(np.mean(base_N != target_N))


def _to_bf16(weights: Bits) -> Bits:
    bits = weights.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _entropy_bound_bytes(base: Tensors, target: Tensors) -> float:
    """Of bf16 steps given the base's exponent."""
    base_N, target_N = (np.frombuffer(t["w"].data, np.uint16) for t in (base, target))
    folded_N, exponent_N = steps_between(base_N, target_N, FORMATS["BF16"]), base_N >> 7 & 255
    num_bits = 0.0
    for exponent in np.unique(exponent_N):
        counts = np.unique(folded_N[exponent_N == exponent], return_counts=True)[1]
        num_bits -= (counts * np.log2(counts / counts.sum())).sum()
    return num_bits / 8


def _sealed(content: Delta) -> bytes:
    """A hostile writer can make the checksum agree."""
    payload = msgspec.msgpack.encode(content)
    return MAGIC + blake3(payload).digest() + payload


def _content(delta: bytes) -> Delta:
    return msgspec.msgpack.decode(delta[len(MAGIC) + 32 :], type=Delta)


def test_one_lattice_step_is_the_next_representable_value() -> None:
    base = np.array([0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F7F], np.uint16)  # 0, -0, 1, -1, largest
    upper = np.array([0x0001, 0x0000, 0x3F81, 0xBF7F, 0x7F80], np.uint16)
    assert steps_between(base, upper, FORMATS["BF16"]).tolist() == [2, 2, 2, 2, 2]  # +1 folded
    assert steps_between(upper, base, FORMATS["BF16"]).tolist() == [1, 1, 1, 1, 1]  # -1 folded


def test_all_bf16_patterns_survive_both_ways_against_every_kind_of_base() -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    others = [np.full_like(patterns, bits) for bits in (0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF)]
    others += [patterns[::-1].copy(), np.random.default_rng(0).permutation(patterns)]
    all_patterns = {"w": make_tensor("BF16", np.tile(patterns, len(others)))}
    against = {"w": make_tensor("BF16", np.concatenate(others))}
    for base, target in ((all_patterns, against), (against, all_patterns)):
        assert decode_delta(base, encode_delta(base, target)) == target


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_bits_of_every_dtype_survive(dtype: str) -> None:
    rng = np.random.default_rng(1)
    width = 8 if dtype == "C64" else FORMATS[dtype].num_bytes
    base, target = (
        {"w": TensorBytes(dtype, (7, 643), rng.bytes(7 * 643 * width))} for _ in range(2)
    )
    assert decode_delta(base, encode_delta(base, target)) == target


@pytest.mark.parametrize("num_elements", [0, 1, 3, 1023, 1025])
@pytest.mark.parametrize("update", [0.0, 1e-6, 5e-5, 1.0])
def test_odd_sizes_and_densities_survive(num_elements: int, update: float) -> None:
    base, target = make_pair(num_elements, update)
    assert decode_delta(base, encode_delta(base, target)) == target
    assert decode_delta({}, encode_delta({}, {})) == {}


def test_tensors_are_cut_into_chunks_and_joined_again() -> None:
    size = delta_module.CHUNK_ELEMENTS
    base = {name: TensorBytes("I8", (n,), bytes(n)) for name, n in (("a", size - 5), ("b", size))}
    target = base | {"b": TensorBytes("I8", (size,), bytes(size - 1) + b"\x07")}
    delta = encode_delta(base, target)
    assert len(_content(delta).chunks) == 2
    assert decode_delta(base, delta) == target


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_numbers_of_any_size_survive(numbers: list[int]) -> None:
    written = write_numbers(np.array(numbers, np.uint64))
    assert read_numbers(written, len(numbers)).tolist() == numbers


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensors, Tensors]:
    base: Tensors = {}
    target: Tensors = {}
    for index in range(draw(st.integers(0, 4))):
        dtype = draw(st.sampled_from([name for name in DTYPES if name != "C64"]))
        num_bytes = draw(st.integers(0, 40)) * FORMATS[dtype].num_bytes
        data = draw(st.binary(min_size=num_bytes, max_size=num_bytes))
        changed = bytearray(data)
        for position in draw(st.lists(st.integers(0, max(0, num_bytes - 1)), max_size=6)):
            changed[position : position + 1] = draw(st.binary(min_size=1, max_size=1))
        changed = changed[:num_bytes]
        shape = (num_bytes // FORMATS[dtype].num_bytes,)
        base[f"t{index}"] = TensorBytes(dtype, shape, data)
        target[f"t{index}"] = TensorBytes(dtype, shape, bytes(changed))
    return base, target


@given(pairs(), st.data())
@settings(max_examples=100)
def test_a_mutated_delta_is_refused_and_a_whole_one_is_exact(
    pair: tuple[Tensors, Tensors], data: st.DataObject
) -> None:
    base, target = pair
    delta = encode_delta(base, target)
    assert delta == encode_delta(base, dict(reversed(target.items())))  # same input, same bytes
    assert decode_delta(base, delta) == target
    position = data.draw(st.integers(0, len(delta) - 1))
    flipped = bytearray(delta)
    flipped[position] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(flipped), delta[:position], delta + delta[:1], delta[position + 1 :]):
        with pytest.raises(DeltaError):
            decode_delta(base, wrong)


@given(st.data())
@settings(max_examples=150)
def test_a_mutation_under_a_right_checksum_never_gives_wrong_data(data: st.DataObject) -> None:
    base, target = make_pair(2_500, data.draw(st.sampled_from([1e-6, 1e-5, 1e-4])))
    payload = bytearray(encode_delta(base, target)[len(MAGIC) + 32 :])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = decode_delta(base, MAGIC + blake3(payload).digest() + bytes(payload))
    except DeltaError:
        return
    assert got == target


def test_a_wrong_base_is_refused_before_decoding_and_left_alone() -> None:
    base, target = make_pair(2_000, 5e-5)
    delta = encode_delta(base, target)
    sealed = _sealed(msgspec.structs.replace(_content(delta), chunks=()))  # nothing to decode
    before = dict(target)
    for wrong in (delta, sealed):
        with pytest.raises(DeltaError, match="base weights: expected digest") as caught:
            decode_delta(target, wrong)
        assert caught.value.expected == f"digest {_content(delta).base_digest}"
    assert target == before


def test_every_change_of_layout_is_refused_by_both_sides() -> None:
    base, target = make_pair(100, 5e-5)
    delta, tensor = encode_delta(base, target), target["w"]
    changed: list[tuple[Mapping[str, TensorBytes], str]] = [
        ({"v": tensor}, r"missing \['w'\], extra \['v'\]"),
        ({"w": tensor, "v": tensor}, r"extra \['v'\]"),
        ({}, r"missing \['w'\]"),
        ({"w": tensor._replace(shape=(10, 10))}, r"expected \('BF16', \(100,\)\)"),
        ({"w": tensor._replace(dtype="F16")}, "got .*F16"),
        ({"w": tensor._replace(data=b"1")}, "expected 200 bytes .* got 1 bytes"),
        ({"w": tensor._replace(dtype="F4")}, "got F4"),
    ]
    for tensors, message in changed:
        with pytest.raises(DeltaError, match=message):
            encode_delta(base, tensors)
        with pytest.raises(DeltaError, match="base weights"):
            decode_delta(tensors, delta)


def test_streams_that_claim_more_than_the_base_has_are_refused_without_the_memory() -> None:
    import zstandard

    base, target = make_pair(100, 5e-5)
    content = _content(encode_delta(base, target))
    none = Numbers(b"", b"")
    zeros = bytes(50_000_000)
    bombs = []
    for with_size in (False, True):
        params = zstandard.ZstdCompressionParameters(
            format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=with_size, window_log=18
        )
        bombs.append(zstandard.ZstdCompressor(compression_params=params).compress(zeros))
    del zeros
    groups = [Group(None, 100, bomb, none) for bomb in bombs]
    groups += [Group(Numbers(bomb, b""), 100, b"", none) for bomb in bombs]
    groups += [Group(Numbers(bombs[0], b""), 2**62, b"", none), Group(None, -1, b"", none)]
    tracemalloc.start()
    for group in groups:
        wrong = _sealed(msgspec.structs.replace(content, chunks=((group,),)))
        with pytest.raises(DeltaError):
            decode_delta(base, wrong)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2_000_000


def test_a_right_looking_delta_to_other_weights_is_refused_by_the_targets_digest() -> None:
    base, target = make_pair(500, 5e-5)
    _, other = make_pair(500, 3e-5)
    digest = _content(encode_delta(base, target)).target_digest
    content = msgspec.structs.replace(_content(encode_delta(base, other)), target_digest=digest)
    with pytest.raises(DeltaError, match=f"decoded weights: expected digest {digest}"):
        decode_delta(base, _sealed(content))


@pytest.mark.parametrize(
    ("update", "densities", "limit"),
    [(7e-5, (0.55, 0.65), 1.05), (3.7e-5, (0.42, 0.48), 1.05), (1.1e-6, (0.03, 0.04), 1.13)],
)
def test_size_is_near_the_entropy_bound_given_the_exponent(
    update: float, densities: tuple[float, float], limit: float
) -> None:
    base, target = make_pair(1_000_000, update)
    assert densities[0] < _density(base, target) < densities[1]
    assert len(encode_delta(base, target)) < limit * _entropy_bound_bytes(base, target)


def test_a_sparse_step_shrinks_the_weights_more_than_150_times() -> None:
    base, target = make_pair(1_000_000, 1e-7)
    assert 0.0043 < _density(base, target) < 0.0049
    assert 2_000_000 / len(encode_delta(base, target)) > 150


def test_wrapping_steps_are_their_own_inverse() -> None:
    form = FORMATS["F64"]
    base = np.array([0, 2**64 - 1, 2**63, 2**63 - 1], np.uint64)
    for shift in range(4):
        target = np.roll(base, shift)
        assert (apply_steps(base, steps_between(base, target, form), form) == target).all()
