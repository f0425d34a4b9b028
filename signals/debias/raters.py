"""Who rates at all: ratings weighted by the inverse probability of being given.

People who rate differ from people who do not. If what decides it is among the covariates, then
sum(r / p) / sum(1 / p) over the rated rows estimates the mean over all rows. Shape: N = rows.
"""

from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from signals.debias.covariates import Covariates, Design, fit_design
from signals.debias.fits import (
    Bools,
    Floats,
    Refused,
    check_same_length,
    digest_of_fit,
    floats,
)
from signals.debias.off_policy import half_width
from signals.debias.overlap import effective_rows
from signals.debias.reward_model import NUM_FOLDS, folds_by_user

PROBABILITY_FLOOR = 0.02
MIN_ROWS_EACH = 50
MIN_EFFECTIVE = 50.0


class RatingModel(msgspec.Struct, frozen=True, kw_only=True):
    """P(rated | covariates) = 1 / (1 + exp(-(intercept + columns . coefficients)))."""

    made_at: float
    num_rows: int
    num_rated: int
    design: Design
    intercept: float
    coefficients: tuple[float, ...]

    @property
    def digest(self) -> str:
        """Names this fit."""
        return digest_of_fit(self)

    def probabilities(self, covariates: Covariates) -> Floats:
        """P(rated) [N], not below `PROBABILITY_FLOOR`."""
        logits_N = self.design.columns(covariates) @ np.array(self.coefficients) + self.intercept
        return np.asarray(np.maximum(1 / (1 + np.exp(-logits_N)), PROBABILITY_FLOOR))


class RatedMean(NamedTuple):
    """Mean rating that all rows would have shown."""

    value: float
    low: float
    high: float
    naive: float
    """Of the rated rows as they are."""
    effective_ratings: float


def fit_raters(covariates: Covariates, rated_N: Bools, *, made_at: float) -> RatingModel | Refused:
    """Logistic regression with scikit-learn's default ridge penalty."""
    from sklearn.linear_model import LogisticRegression

    num_rated = int(rated_N.sum())
    if min(num_rated, rated_N.size - num_rated) < MIN_ROWS_EACH:
        return Refused(
            "rating model",
            f"{num_rated} of {rated_N.size} rows rated, expected at least {MIN_ROWS_EACH} of each",
        )
    design = fit_design(covariates)
    columns_ND = design.columns(covariates)
    check_same_length(rated=rated_N, rows=columns_ND[:, 0])
    model = LogisticRegression(max_iter=1_000).fit(columns_ND, rated_N)
    return RatingModel(
        made_at=made_at,
        num_rows=rated_N.size,
        num_rated=num_rated,
        design=design,
        intercept=float(model.intercept_[0]),
        coefficients=floats(model.coef_[0]),
    )


def cross_fitted(
    covariates: Covariates, rated_N: Bools, users_N: NDArray[Any], *, made_at: float
) -> Floats | Refused:
    """P(rated) [N] of each row by a model that saw no row of its user."""
    check_same_length(rated=rated_N, users=users_N)
    folds_N = folds_by_user(users_N, num_folds=NUM_FOLDS)
    probabilities_N = np.zeros(rated_N.size)
    for fold in np.unique(folds_N):
        others, here = folds_N != fold, folds_N == fold
        model = fit_raters(_rows(covariates, others), rated_N[others], made_at=made_at)
        if isinstance(model, Refused):
            return model
        probabilities_N[here] = model.probabilities(_rows(covariates, here))
    return probabilities_N


def mean_over_all(
    ratings_N: Floats, rated_N: Bools, probabilities_N: Floats, users_N: NDArray[Any]
) -> RatedMean | Refused:
    """Hajek's weighted mean, interval by user; `ratings_N` is read only where `rated_N`."""
    check_same_length(ratings=ratings_N, rated=rated_N, p=probabilities_N, users=users_N)
    weights_N = np.where(rated_N, 1 / np.maximum(probabilities_N, PROBABILITY_FLOOR), 0.0)
    effective = effective_rows(weights_N)
    if effective < MIN_EFFECTIVE:
        return Refused(
            "mean rating", f"{effective:.4g} effective ratings, expected >= {MIN_EFFECTIVE:g}"
        )
    known_N = np.where(rated_N, ratings_N, 0.0)
    value = float(weights_N @ known_N / weights_N.sum())
    deviations_N = weights_N * (known_N - value) * (weights_N.size / weights_N.sum())
    half = half_width(deviations_N, users_N)
    naive = float(ratings_N[rated_N].mean())
    return RatedMean(value, value - half, value + half, naive, effective)


def _rows(covariates: Covariates, which_N: Bools) -> Covariates:
    return Covariates(
        {name: column[which_N] for name, column in covariates.amounts.items()},
        {name: column[which_N] for name, column in covariates.categories.items()},
    )
