"""A few numbers that describe many."""

from collections.abc import Collection

import msgspec
import numpy as np


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles, linear between neighbours; None without observations."""

    num: int
    p50: float | None
    p90: float | None
    p99: float | None


def spread_of(values: Collection[float]) -> Spread:
    """Percentiles of `values`, in their unit."""
    if not values:
        return Spread(num=0, p50=None, p90=None, p99=None)
    p50, p90, p99 = (float(p) for p in np.percentile(np.array(list(values)), (50, 90, 99)))
    return Spread(num=len(values), p50=p50, p90=p90, p99=p99)
