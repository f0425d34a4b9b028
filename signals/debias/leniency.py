"""How a user rates whatever he is shown, and how visible time or latency moves a rating: taken out.

Model: r = mean + columns . b + u_user + e. The slopes b come from differences within users, so that
kind users of a slow surface do not look like kindness of slowness; u is drawn towards 0 by how
little is known of it (best linear unbiased prediction, Robinson 1991, of a random intercept).
Fair only where users do not choose which policy serves them. Shapes: N = rows, D = columns.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from signals.debias.covariates import Covariates, Design, fit_design
from signals.debias.fits import (
    Floats,
    Refused,
    check_finite,
    check_same_length,
    digest_of_fit,
    floats,
)

MIN_USERS = 10
RIDGE = 1e-6  # keeps a column that never varies within a user from having a slope


class LeniencyFit(msgspec.Struct, frozen=True, kw_only=True):
    """Slopes, and each user's shrunken intercept."""

    made_at: float
    num_rows: int
    mean: float
    between: float
    """Variance of users' true intercepts."""
    within: float
    """Variance of one rating around its user's."""
    design: Design | None
    column_means: tuple[float, ...]
    slopes: tuple[float, ...]
    intercepts: dict[str, float]
    """By user key; 0 for anyone absent."""

    @property
    def digest(self) -> str:
        """Names this fit."""
        return digest_of_fit(self)

    def adjusted(
        self, ratings_N: Floats, users_N: NDArray[Any], covariates: Covariates | None = None
    ) -> Floats:
        """Ratings [N] as an average user would have given them under average circumstances."""
        moved_N = np.zeros_like(ratings_N)
        if self.design is not None and covariates is not None:
            columns_ND = self.design.columns(covariates) - np.array(self.column_means)
            moved_N = columns_ND @ np.array(self.slopes)
        lenient_N = np.array([self.intercepts.get(str(user), 0.0) for user in users_N])
        return np.asarray(ratings_N - moved_N - lenient_N)


def fit_leniency(
    ratings_N: Floats,
    users_N: NDArray[Any],
    covariates: Covariates | None = None,
    *,
    made_at: float,
) -> LeniencyFit | Refused:
    """Within-user slopes, then variance components by moments, then intercepts."""
    check_same_length(ratings=ratings_N, users=users_N)
    check_finite(ratings=ratings_N)
    names_G, user_of_N, count_G = np.unique(users_N, return_inverse=True, return_counts=True)
    if count_G.size < MIN_USERS or (count_G > 1).sum() < MIN_USERS:
        return Refused(
            "leniency",
            f"{count_G.size} users, {(count_G > 1).sum()} of them with several ratings, "
            f"expected at least {MIN_USERS}",
        )
    design = None if covariates is None else fit_design(covariates)
    columns_ND = np.zeros((ratings_N.size, 0))
    if design is not None and covariates is not None:
        columns_ND = design.columns(covariates)
    slopes_D = _within_slopes(columns_ND, ratings_N, user_of_N, count_G)
    column_means_D = columns_ND.mean(axis=0)
    explained_N = ratings_N - (columns_ND - column_means_D) @ slopes_D
    mean_G = np.bincount(user_of_N, weights=explained_N) / count_G
    within, between, mean = _variances(explained_N, mean_G[user_of_N], mean_G, count_G)
    shrink_G = between / (between + within / count_G) if between > 0 else np.zeros(count_G.size)
    intercepts = dict(zip(map(str, names_G), floats(shrink_G * (mean_G - mean)), strict=True))
    return LeniencyFit(
        made_at=made_at,
        num_rows=ratings_N.size,
        mean=mean,
        between=between,
        within=within,
        design=design,
        column_means=floats(column_means_D),
        slopes=floats(slopes_D),
        intercepts=intercepts,
    )


def _within_slopes(
    columns_ND: Floats, ratings_N: Floats, user_of_N: NDArray[np.intp], count_G: NDArray[np.intp]
) -> Floats:
    def centred(column_N: Floats) -> Floats:
        mean_G = np.bincount(user_of_N, weights=column_N) / count_G
        return np.asarray(column_N - mean_G[user_of_N])

    num_columns = columns_ND.shape[1]
    if num_columns == 0:
        return np.zeros(0)
    within_ND = np.column_stack([centred(columns_ND[:, d]) for d in range(num_columns)])
    gram_DD = within_ND.T @ within_ND + RIDGE * ratings_N.size * np.eye(num_columns)
    return np.asarray(np.linalg.solve(gram_DD, within_ND.T @ centred(ratings_N)))


def _variances(
    values_N: Floats, own_mean_N: Floats, mean_G: Floats, count_G: NDArray[np.intp]
) -> tuple[float, float, float]:
    """(within, between, mean): one-way random effects, unbalanced (Searle et al. 1992, 3.6)."""
    num_rows, num_users = values_N.size, count_G.size
    within = float(np.square(values_N - own_mean_N).sum()) / (num_rows - num_users)
    overall = float(values_N.mean())
    between_squares = float(count_G @ np.square(mean_G - overall))
    size = num_rows - float(np.square(count_G).sum()) / num_rows
    between = max((between_squares - (num_users - 1) * within) / size, 0.0)
    weight_G = 1 / (between + within / count_G) if between + within > 0 else np.ones(num_users)
    return within, between, float(weight_G @ mean_G / weight_G.sum())
