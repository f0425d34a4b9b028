"""How much more often one position is looked at than another, from randomised order only.

Examination model: P(click) = P(examined | position) * P(good | content). Where the order was drawn
at random, content is the same at every position in expectation, so a click's position tells the
ratio of examinations. From any other order it cannot be told, and is refused.
"""

import math

import msgspec
import numpy as np

from signals.debias.fits import Bools, Floats, Ints, Refused, check_same_length, digest_of_fit

CONFIDENCE = 0.95
MIN_CLICKS = 5
FACTOR_FLOOR = 0.1
TINY = 1e-12


class Factor(msgspec.Struct, frozen=True):
    """Examination of one position over that of the first, with its confidence sequence."""

    position: int
    factor: float
    low: float
    high: float


class ExaminationFit(msgspec.Struct, frozen=True, kw_only=True):
    """Factors of every position; the first has 1."""

    surface: str
    made_at: float
    num_rows: int
    num_clicks: int
    factors: tuple[Factor, ...]

    @property
    def digest(self) -> str:
        """Names this fit."""
        return digest_of_fit(self)

    def weights(self, positions_N: Ints) -> Floats:
        """Weight [N] of a click at each position: 1 / max(factor, `FACTOR_FLOOR`)."""
        factor_of = {factor.position: factor.factor for factor in self.factors}
        return np.array([1 / max(factor_of[int(k)], FACTOR_FLOOR) for k in positions_N])


def fit_examination(
    positions_N: Ints, clicked_N: Bools, randomised_N: Bools, *, surface: str, made_at: float
) -> ExaminationFit | Refused:
    """Fit on rows whose order was drawn uniformly; `positions_N` counts from 1.

    Odds of a click's position against the first, over the odds of showing there: given that there
    was a click, its position is a draw that depends on nothing else.
    """
    check_same_length(positions=positions_N, clicked=clicked_N, randomised=randomised_N)
    what = f"position factors of {surface}"
    positions, clicked = positions_N[randomised_N], clicked_N[randomised_N]
    if positions.size == 0:
        return Refused(what, "no row whose order was drawn at random")
    shown_K = np.bincount(positions)[1:]
    clicks_K = np.bincount(positions[clicked], minlength=shown_K.size + 1)[1:]
    if clicks_K.min() < MIN_CLICKS:
        position = int(clicks_K.argmin()) + 1
        return Refused(
            what, f"{clicks_K.min()} clicks at position {position}, expected >= {MIN_CLICKS}"
        )
    factors = [Factor(1, 1.0, 1.0, 1.0)]
    for k in range(1, shown_K.size):
        low, high = share_bounds(int(clicks_K[k]), int(clicks_K[k] + clicks_K[0]))
        exposure = float(shown_K[0] / shown_K[k])
        factor = float(clicks_K[k] / clicks_K[0]) * exposure
        factors.append(Factor(k + 1, factor, _odds(low) * exposure, _odds(high) * exposure))
    return ExaminationFit(
        surface=surface,
        made_at=made_at,
        num_rows=int(positions.size),
        num_clicks=int(clicks_K.sum()),
        factors=tuple(factors),
    )


def share_bounds(hits: int, draws: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Confidence sequence of a share: holds at every look at once, so a daily refit may be read.

    Where the uniform mixture B(h+1, n-h+1) / (p^h (1-p)^(n-h)) stays below 1 / (1 - confidence)
    (Ville's inequality; Robbins 1970).
    """
    from scipy.optimize import brentq

    misses = draws - hits
    mixture = math.lgamma(hits + 1) + math.lgamma(misses + 1) - math.lgamma(draws + 2)
    limit = -math.log(1 - confidence)
    best = hits / draws if draws else 0.5

    def over(share: float) -> float:
        return mixture - hits * math.log(share) - misses * math.log1p(-share) - limit

    middle = min(max(best, TINY), 1 - TINY)
    low = brentq(over, TINY, middle) if hits else 0.0
    high = brentq(over, middle, 1 - TINY) if misses else 1.0
    return float(low), float(high)


def _odds(share: float) -> float:
    return share / (1 - share) if share < 1 else math.inf
