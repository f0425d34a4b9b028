"""Weight deltas: what turns one version's tensors into another's, bit for bit.

Elements of one dtype are cut into chunks; in a chunk they are grouped by the exponent of the base,
which predicts how likely an element is to change, and each group's lattice steps are coded apart.
The same tensors give the same bytes (with one zstd library). Layout: magic, BLAKE3 of the rest,
then msgpack of `Delta`. Nothing is decoded before the checksum and the base's digest agree.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from blake3 import blake3

from shipper.groups import Group, decode_group, encode_group
from shipper.lattice import FORMATS, Bits, Format, apply_steps, groups_of, steps_between
from shipper.streams import BadStream
from tendril.weights import TensorBytes, weights_digest

MAGIC = b"TENDRIL\x01"
CHUNK_ELEMENTS = 1 << 21
"""Bounds the working memory; large enough that code tables cost next to nothing."""
Tensors = Mapping[str, TensorBytes]


class DeltaError(ValueError):
    """A delta that cannot be made, or must not be applied. Nothing was changed."""

    def __init__(self, what: str, expected: str, got: str) -> None:
        super().__init__(f"{what}: expected {expected}, got {got}")
        self.what, self.expected, self.got = what, expected, got


class Delta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All that is in the file. Names, dtypes and shapes are the base's, as its digest covers."""

    base_digest: str
    target_digest: str
    chunks: tuple[tuple[Group, ...], ...]


class Piece(NamedTuple):
    """Elements [start, end) of one tensor."""

    name: str
    start: int
    end: int


class Chunk(NamedTuple):
    """Elements coded together, of one dtype."""

    form: Format
    pieces: tuple[Piece, ...]


def encode_delta(base: Tensors, target: Tensors) -> bytes:
    """The delta from `base` to `target`; raises `DeltaError` if their tensors differ in layout."""
    _check_tensors("base", base)
    _check_tensors("target", target)
    _check_same_layout(base, target)
    chunks = []
    for chunk in _chunks(base):
        base_N = _gather(base, chunk)
        folded_N = steps_between(base_N, _gather(target, chunk), chunk.form)
        groups = groups_of(base_N, chunk.form)
        chunks.append(tuple(encode_group(folded_N[group]) for group in groups))
    delta = Delta(weights_digest(base), weights_digest(target), tuple(chunks))
    payload = msgspec.msgpack.encode(delta)
    return MAGIC + blake3(payload).digest() + payload


def decode_delta(base: Tensors, delta: bytes) -> dict[str, TensorBytes]:
    """The target, verified; `base` is left as it is. Raises `DeltaError` for anything else."""
    content = _open(delta)
    got = weights_digest(base)
    if got != content.base_digest:
        raise DeltaError("base weights", f"digest {content.base_digest}", got)
    _check_tensors("base", base)
    try:
        target = _rebuild(base, content)
    except BadStream as error:
        raise DeltaError("delta streams", "streams that fit the base", str(error)) from error
    got = weights_digest(target)
    if got != content.target_digest:
        raise DeltaError("decoded weights", f"digest {content.target_digest}", got)
    return target


def _open(delta: bytes) -> Delta:
    """Check magic and checksum, then read."""
    start = len(MAGIC) + blake3.digest_size
    if len(delta) < start or not delta.startswith(MAGIC):
        raise DeltaError("delta", f"{MAGIC!r} and a checksum first", repr(delta[: len(MAGIC)]))
    checksum, payload = delta[len(MAGIC) : start], delta[start:]
    if blake3(payload).digest() != checksum:
        raise DeltaError("delta checksum", checksum.hex(), blake3(payload).hexdigest())
    try:
        return msgspec.msgpack.decode(payload, type=Delta)
    except msgspec.DecodeError as error:
        raise DeltaError("delta content", "msgpack of a delta", str(error)) from error


def _rebuild(base: Tensors, content: Delta) -> dict[str, TensorBytes]:
    plan = list(_chunks(base))
    if len(plan) != len(content.chunks):
        raise BadStream(f"expected {len(plan)} chunks, got {len(content.chunks)}")
    buffers = {name: bytearray(len(tensor.data)) for name, tensor in base.items()}
    for chunk, coded in zip(plan, content.chunks, strict=True):
        base_N = _gather(base, chunk)
        groups = groups_of(base_N, chunk.form)
        if len(groups) != len(coded):
            raise BadStream(f"expected {len(groups)} groups, got {len(coded)}")
        folded_N = np.empty_like(base_N)
        for positions, group in zip(groups, coded, strict=True):
            folded_N[positions] = decode_group(group, positions.size, base_N.dtype)
        _scatter(buffers, chunk, apply_steps(base_N, folded_N, chunk.form))
    return {
        name: TensorBytes(tensor.dtype, tensor.shape, bytes(buffers.pop(name)))
        for name, tensor in base.items()
    }


def _chunks(tensors: Tensors) -> Iterator[Chunk]:
    """Every element once, in a fixed order: by dtype, then name."""
    for dtype in sorted({tensor.dtype for tensor in tensors.values()}):
        form = FORMATS[dtype]
        pieces: list[Piece] = []
        room = CHUNK_ELEMENTS
        for name in sorted(name for name, tensor in tensors.items() if tensor.dtype == dtype):
            start, size = 0, len(tensors[name].data) // form.num_bytes
            while start < size:
                end = min(size, start + room)
                pieces.append(Piece(name, start, end))
                start, room = end, room - (end - start)
                if not room:
                    yield Chunk(form, tuple(pieces))
                    pieces, room = [], CHUNK_ELEMENTS
        if pieces:
            yield Chunk(form, tuple(pieces))


def _gather(tensors: Tensors, chunk: Chunk) -> Bits:
    width = f"<u{chunk.form.num_bytes}"
    return np.concatenate(
        [np.frombuffer(tensors[p.name].data, width)[p.start : p.end] for p in chunk.pieces]
    )


def _scatter(buffers: Mapping[str, bytearray], chunk: Chunk, bits_N: Bits) -> None:
    done = 0
    for name, start, end in chunk.pieces:
        whole = np.frombuffer(buffers[name], bits_N.dtype)
        whole[start:end] = bits_N[done : done + end - start]
        done += end - start


def _check_tensors(whose: str, tensors: Tensors) -> None:
    for name, (dtype, shape, data) in tensors.items():
        if dtype not in FORMATS:
            raise DeltaError(f"{whose} {name}", f"a dtype among {', '.join(FORMATS)}", dtype)
        item_bytes = FORMATS[dtype].num_bytes * (2 if dtype == "C64" else 1)
        if len(data) != math.prod(shape) * item_bytes:
            expected = f"{math.prod(shape) * item_bytes} bytes for {dtype} {shape}"
            raise DeltaError(f"{whose} {name}", expected, f"{len(data)} bytes")


def _check_same_layout(base: Tensors, target: Tensors) -> None:
    if base.keys() != target.keys():
        missing, extra = sorted(base.keys() - target.keys()), sorted(target.keys() - base.keys())
        raise DeltaError("target tensors", "the base's", f"missing {missing}, extra {extra}")
    for name in base:
        expected, got = base[name][:2], target[name][:2]
        if expected != got:
            raise DeltaError(f"target {name}", str(expected), str(got))
