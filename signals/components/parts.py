"""What a component says: its value, and what is still to come or will never come."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Absence = Literal["pending", "censored", "missing"]
Absent = tuple[tuple[str, Absence], ...]
"""What was left out, by name, and why: not due yet, not observable, or due and not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A route's verdict before costs, clipping and credit."""

    outcome: str
    reward: float | None
    weight: float = 1.0
    components: dict[str, float] = field(default_factory=dict)
    absent: Absent = ()


def weighted_mean(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Of (weight, value) pairs; None without weight."""
    pairs = list(pairs)
    if len(pairs) == 1 and pairs[0][0] > 0:
        return pairs[0][1]
    total = math.fsum(weight for weight, _ in pairs)
    return math.fsum(weight * value for weight, value in pairs) / total if total > 0 else None
