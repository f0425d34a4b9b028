"""What every fit here has in common: a digest that names it, and a reason where there is none.

A fit is made at a moment T from what was known at T, and is never changed afterwards; who used it
names its digest.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tendril.ids import digest_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """No figure, on purpose: the data would not carry it."""

    what: str
    reason: str


def digest_of_fit(fit: msgspec.Struct) -> str:
    """Names the contents of `fit`: equal contents, equal digest."""
    content = msgspec.json.encode(fit, order="sorted").decode()
    return digest_of(type(fit).__name__, content)


def floats(values: Any) -> tuple[float, ...]:
    """An array as a fit stores it."""
    return tuple(float(value) for value in values)


def check_same_length(**columns: NDArray[Any]) -> int:
    """The common length of `columns`. Raises `ValueError` naming each one's shape."""
    shapes = {name: column.shape for name, column in columns.items()}
    if len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != 1:
        raise ValueError(f"expected columns of one length, got {shapes}")
    return int(next(iter(shapes.values()))[0])


def check_finite(**columns: Floats) -> None:
    """Raises `ValueError` naming the first column that holds a NaN or an infinity."""
    for name, column in columns.items():
        if not np.isfinite(column).all():
            raise ValueError(f"{name}: expected finite numbers, got {column[~np.isfinite(column)]}")


def group_sums(values_N: Floats, groups_N: NDArray[Any]) -> Floats:
    """Sum of `values_N` over each group, in the order of the sorted group names."""
    _, group_of_N = np.unique(groups_N, return_inverse=True)
    return np.bincount(group_of_N, weights=values_N).astype(np.float64)
