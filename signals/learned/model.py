"""P(good at 24 h | early signals): logistic regression, calibrated; reward 2p - 1.

Stored as numbers in JSON with a digest; the same rows give the same bytes. Calibration is isotonic,
fitted on users that the regression has not seen.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from signals.learned.rows import Observation, table
from tendril.ids import digest_of


class LearnedReward(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fitted numbers. A missing feature counts as its mean, and its absence has a weight."""

    names: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[float, ...]
    absent_weights: tuple[float, ...]
    bias: float
    knots: tuple[tuple[float, float], ...]
    """Isotonic calibration: (score, probability), rising."""

    @property
    def digest(self) -> str:
        return digest_of("learned", msgspec.json.encode(self).decode())

    def probability(self, features: Mapping[str, float | None]) -> float:
        """P(good), in [0, 1]."""
        return interpolated(self.knots, _logit(self, features))

    def reward(self, features: Mapping[str, float | None]) -> float:
        """2p - 1, in [-1, 1]."""
        return 2 * self.probability(features) - 1


def interpolated(knots: Sequence[tuple[float, float]], score: float) -> float:
    """Linear between knots, constant beyond them."""
    at = bisect.bisect_left(knots, (score, -math.inf))
    if at == 0:
        return knots[0][1]
    if at == len(knots):
        return knots[-1][1]
    (x0, y0), (x1, y1) = knots[at - 1], knots[at]
    return y0 + (y1 - y0) * (score - x0) / (x1 - x0)


def fit_learned(train: Sequence[Observation], calibrate: Sequence[Observation]) -> LearnedReward:
    """Fit on `train`, calibrate on the other users of `calibrate`.

    Raises `ValueError` if users are shared or one of the two lacks either class.
    """
    from sklearn.linear_model import LogisticRegression

    shared = {row.user_key for row in train} & {row.user_key for row in calibrate}
    if shared:
        raise ValueError(f"expected no user in both sets, got {len(shared)}")
    for name, rows in (("train", train), ("calibrate", calibrate)):
        if len({row.good for row in rows}) < 2:
            raise ValueError(f"{name}: expected good and bad outcomes, got only one of them")
    names = tuple(sorted({name for row in train for name in row.features}))
    values_NF = np.array(table(train, names), np.float64)
    absent_NF = np.isnan(values_NF)
    means_F = np.where(absent_NF, 0, values_NF).sum(0) / np.maximum((~absent_NF).sum(0), 1)
    centred_NF = np.where(absent_NF, 0.0, values_NF - means_F)
    scales_F = np.maximum(centred_NF.std(axis=0), 1e-9)
    inputs = np.hstack([centred_NF / scales_F, absent_NF])
    fitted = LogisticRegression(max_iter=1000).fit(inputs, [row.good for row in train])
    split_at = len(names)
    model = LearnedReward(
        names=names,
        means=_floats(means_F),
        scales=_floats(scales_F),
        weights=_floats(fitted.coef_[0, :split_at]),
        absent_weights=_floats(fitted.coef_[0, split_at:]),
        bias=float(fitted.intercept_[0]),
        knots=((-1e9, 0.0), (1e9, 1.0)),
    )
    scores = [_logit(model, row.features) for row in calibrate]
    return msgspec.structs.replace(model, knots=isotonic(scores, [r.good for r in calibrate]))


def isotonic(scores: Sequence[float], good: Sequence[bool]) -> tuple[tuple[float, float], ...]:
    """Knots of the isotonic regression of outcome on score."""
    from sklearn.isotonic import IsotonicRegression

    fitted: Any = IsotonicRegression(y_min=0.0, y_max=1.0).fit(scores, np.asarray(good, np.float64))
    return tuple(zip(_floats(fitted.X_thresholds_), _floats(fitted.y_thresholds_), strict=True))


def _logit(model: LearnedReward, features: Mapping[str, float | None]) -> float:
    values = [features.get(name) for name in model.names]
    return model.bias + math.fsum(
        absent if value is None else weight * (value - mean) / scale
        for value, weight, absent, mean, scale in zip(
            values, model.weights, model.absent_weights, model.means, model.scales, strict=True
        )
    )


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(float(value), 9) for value in values)
