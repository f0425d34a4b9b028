"""What a component says: its value, and what is still to come or will never come."""

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

Absence = Literal["pending", "censored", "missing"]
Absent = tuple[tuple[str, Absence], ...]
"""What was left out, by name, and why: not due yet, not observable, or due and not there."""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """A route's verdict before costs, clipping and credit."""

    outcome: str
    reward: float | None
    weight: float = 1.0
    components: dict[str, float] = {}
    absent: Absent = ()


def weighted_mean(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Of (weight, value) pairs; None without weight."""
    pairs = list(pairs)
    if len(pairs) == 1 and pairs[0][0] > 0:
        return pairs[0][1]
    total = math.fsum(weight for weight, _ in pairs)
    return math.fsum(weight * value for weight, value in pairs) / total if total > 0 else None
