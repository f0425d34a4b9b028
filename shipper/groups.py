"""One group of lattice steps as streams: which elements changed, by how much.

Steps are sign-folded (see `shipper.lattice`). A dense group has a two-bit symbol for every element,
a sparse one has gaps between changed elements and symbols for those. Symbol 3 is an escape.
Shape letters: N = elements of the group, C = those that changed.
"""

import msgspec
import numpy as np

from shipper.lattice import Bits
from shipper.streams import (
    BadStream,
    Numbers,
    pack_pairs,
    read_numbers,
    unpack_pairs,
    write_numbers,
)

ESCAPE = 3
SURELY_SPARSE, SURELY_DENSE = 0.02, 0.4  # shares of changed elements; between them both are tried


class Group(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Steps of one group."""

    gaps: Numbers | None
    """Unchanged elements before each changed one; None: every element has a symbol."""
    num_changed: int
    symbols: bytes
    escapes: Numbers
    """Folded steps of 3 and more, less 3."""


def encode_group(folded_N: Bits) -> Group:
    """The smaller of the dense and the sparse form."""
    changed_C = np.flatnonzero(folded_N)
    share = changed_C.size / max(1, folded_N.size)
    forms = []
    if share < SURELY_DENSE:
        gaps_C = (np.diff(changed_C, prepend=-1) - 1).astype(np.uint64)
        forms.append(_encode(folded_N[changed_C], changed_C.size, write_numbers(gaps_C)))
    if share >= SURELY_SPARSE:
        forms.append(_encode(folded_N, changed_C.size, None))
    return min(forms, key=lambda form: len(msgspec.msgpack.encode(form)))


def decode_group(group: Group, count: int, width: np.dtype[np.generic]) -> Bits:
    """The folded steps of `count` elements; raises `BadStream` if the group cannot be that."""
    if not 0 <= group.num_changed <= count:
        raise BadStream(f"expected at most {count} changed elements, got {group.num_changed}")
    if group.gaps is None:
        return _decode(group, count, width)
    gaps_C = read_numbers(group.gaps, group.num_changed)
    if group.num_changed and gaps_C.max() >= count:  # also keeps the sum below from overflowing
        raise BadStream(f"expected gaps below {count}, got {gaps_C.max()}")
    changed_C = np.cumsum(gaps_C.astype(np.int64) + 1) - 1
    if group.num_changed and changed_C[-1] >= count:
        raise BadStream(f"expected positions below {count}, got {changed_C[-1]}")
    folded_N: Bits = np.zeros(count, width)
    folded_N[changed_C] = _decode(group, group.num_changed, width)
    return folded_N


def _encode(folded: Bits, num_changed: int, gaps: Numbers | None) -> Group:
    symbols = np.minimum(folded, ESCAPE).astype(np.uint8)
    escapes = folded[symbols == ESCAPE].astype(np.uint64) - np.uint64(ESCAPE)
    return Group(gaps, num_changed, pack_pairs(symbols), write_numbers(escapes))


def _decode(group: Group, count: int, width: np.dtype[np.generic]) -> Bits:
    symbols = unpack_pairs(group.symbols, count)
    folded: Bits = symbols.astype(width)
    escaped = np.flatnonzero(symbols == ESCAPE)
    steps = read_numbers(group.escapes, escaped.size) + np.uint64(ESCAPE)
    folded[escaped] = steps.astype(width)
    return folded
