"""Ratings on [-1, 1], whatever scale they were given on: equal meaning, equal reward."""

import numpy as np

from signals.debias.fits import Floats, check_same_length


class UnknownScale(ValueError):
    """A rating without a scale, or outside the one it names: it has no meaning."""


def to_unit(value: float, scale_min: float | None, scale_max: float | None) -> float:
    """Least to -1, middle to 0, most to +1: 1 of 1-5 and 1 of 1-10 are the same. Anchors 2.

    Raises `UnknownScale`.
    """
    if scale_min is None or scale_max is None:
        raise UnknownScale(f"rating {value}: expected scale_min and scale_max, got none")
    if not (np.isfinite([scale_min, scale_max]).all() and scale_min < scale_max):
        raise UnknownScale(f"expected scale_min < scale_max, got {scale_min} and {scale_max}")
    if not scale_min <= value <= scale_max:
        raise UnknownScale(f"rating {value}: expected {scale_min} to {scale_max}")
    return 2 * (value - scale_min) / (scale_max - scale_min) - 1


def to_units(values_N: Floats, scale_min_N: Floats, scale_max_N: Floats) -> Floats:
    """The same for columns [N]; NaN where `to_unit` would refuse: unknown, never 0."""
    check_same_length(values=values_N, scale_min=scale_min_N, scale_max=scale_max_N)
    width_N = scale_max_N - scale_min_N
    with np.errstate(invalid="ignore", divide="ignore"):
        known_N = (width_N > 0) & (values_N >= scale_min_N) & (values_N <= scale_max_N)
        known_N &= np.isfinite(width_N)
        units_N = 2 * (values_N - scale_min_N) / width_N - 1
    return np.where(known_N, units_N, np.nan)
