"""The ordered lattice of a dtype: bit patterns as integers in the order of their values.

One lattice step is the smallest change a dtype can show, so what an optimizer step does to rounded
weights is mostly -1, 0 or +1. Bijective on every bit pattern: -0, infinities, NaN payloads.
Shape letter: N = elements.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]  # [N] unsigned integers of one width: 1, 2, 4 or 8 bytes
MIN_GROUP = 1024  # elements; below it a group's own code tables cost more than they save


class Format(NamedTuple):
    """How a dtype uses its bits. Without a sign or exponent it is an integer: one class."""

    num_bytes: int
    mantissa_bits: int | None = None


FORMATS: Mapping[str, Format] = {
    "BF16": Format(2, 7), "F16": Format(2, 10), "F32": Format(4, 23), "F64": Format(8, 52),
    "C64": Format(4, 23), "F8_E4M3": Format(1, 3), "F8_E5M2": Format(1, 2),
    "F8_E4M3FNUZ": Format(1, 3), "F8_E5M2FNUZ": Format(1, 2), "F8_E8M0": Format(1),
    "BOOL": Format(1), "U8": Format(1), "I8": Format(1), "U16": Format(2), "I16": Format(2),
    "U32": Format(4), "I32": Format(4), "U64": Format(8), "I64": Format(8),
}  # fmt: skip


def steps_between(base_N: Bits, target_N: Bits, form: Format) -> Bits:
    """Lattice steps from base to target, sign-folded (0, -1, +1, -2, ... become 0, 1, 2, 3, ...).

    Steps wrap around at the width, so each target has exactly one.
    """
    step_N = _to_lattice(target_N, form) - _to_lattice(base_N, form)
    return (step_N << 1) ^ -(step_N >> _sign_bit(form))


def apply_steps(base_N: Bits, folded_N: Bits, form: Format) -> Bits:
    """The target: inverse of `steps_between`."""
    step_N = (folded_N >> 1) ^ -(folded_N & 1)
    return _from_lattice(_to_lattice(base_N, form) + step_N, form)


def groups_of(base_N: Bits, form: Format) -> list[NDArray[np.intp]]:
    """Positions of the elements to be coded together: by exponent of the base, small ones merged.

    A function of the base alone, so that the decoder finds the same groups without being told.
    """
    if form.mantissa_bits is None or not base_N.size:
        return [np.arange(base_N.size)] if base_N.size else []
    exponent_mask = (1 << (_sign_bit(form) - form.mantissa_bits)) - 1
    exponent_N = ((base_N >> form.mantissa_bits) & exponent_mask).astype(np.uint16)
    group_of_exponent = _merge_small(np.bincount(exponent_N, minlength=exponent_mask + 1))
    group_N = group_of_exponent[exponent_N]
    order_N = np.argsort(group_N, kind="stable")
    ends = np.cumsum(np.bincount(group_N))
    return np.split(order_N, ends[:-1])


def _merge_small(count_of_exponent: NDArray[np.intp]) -> NDArray[np.uint16]:
    """Group number by exponent: upwards, each group closes once it holds `MIN_GROUP` elements."""
    group_of_exponent = np.zeros(len(count_of_exponent), np.uint16)
    group, held, left = 0, 0, int(count_of_exponent.sum())
    for exponent, count in enumerate(count_of_exponent):
        group_of_exponent[exponent] = group
        held, left = held + int(count), left - int(count)
        if held >= MIN_GROUP and left >= MIN_GROUP:
            group, held = group + 1, 0
    return group_of_exponent


def _sign_bit(form: Format) -> int:
    return form.num_bytes * 8 - 1


def _to_lattice(bits_N: Bits, form: Format) -> Bits:
    """Sign and magnitude to order: negatives have all bits flipped, others gain the top bit."""
    if form.mantissa_bits is None:
        return bits_N
    top = bits_N.dtype.type(1 << _sign_bit(form))
    flips_N: Bits = -(bits_N >> _sign_bit(form)) | top
    return bits_N ^ flips_N


def _from_lattice(key_N: Bits, form: Format) -> Bits:
    if form.mantissa_bits is None:
        return key_N
    top = key_N.dtype.type(1 << _sign_bit(form))
    flips_N: Bits = ((key_N >> _sign_bit(form)) - key_N.dtype.type(1)) | top
    return key_N ^ flips_N
