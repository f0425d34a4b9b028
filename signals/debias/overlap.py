"""Whether a log can say anything about a policy: effective sample size, floors, and refusals.

Shape: N = logged decisions. Weights are target over logging probability of what was done.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from signals.debias.fits import Floats, check_finite, check_same_length


class LoggedBatch(NamedTuple):
    """What was done, how it went, and how likely both policies were to do it."""

    rewards_N: Floats
    logged_N: Floats
    """Probability of the action taken under the policy that logged it, as stored at that time."""
    target_N: Floats
    """Probability of the same action under the policy to be valued."""
    users_N: NDArray[Any] | None = None
    """Who: rows of one user are not independent, so intervals are by user. None: each row is."""


class Rules(NamedTuple):
    """When an estimate is refused. Anchors 3.1."""

    min_effective_share: float = 0.05
    min_effective: float = 200.0
    propensity_floor: float = 0.01
    """The server explores at least this much; a smaller propensity breaks that promise. 0: a
    foreign log that promised nothing."""
    max_weight_error_se: float = 5.0
    """Weights average 1 if propensities are right; standard errors away at which they are not."""
    min_users: int = 30


class Overlap(NamedTuple):
    """How far the log covers what the target policy would do."""

    num_rows: int
    effective_rows: float
    max_weight: float
    mean_weight: float


def weights_of(batch: LoggedBatch) -> Floats:
    """Importance weights [N]. Raises `ValueError` for what cannot be probabilities or rewards."""
    check_same_length(rewards=batch.rewards_N, logged=batch.logged_N, target=batch.target_N)
    check_finite(rewards=batch.rewards_N, logged=batch.logged_N, target=batch.target_N)
    if not ((batch.logged_N > 0) & (batch.logged_N <= 1)).all():
        raise ValueError(f"logged: expected in (0, 1], got {_range_of(batch.logged_N)}")
    if not ((batch.target_N >= 0) & (batch.target_N <= 1)).all():
        raise ValueError(f"target: expected in [0, 1], got {_range_of(batch.target_N)}")
    if batch.users_N is not None:
        check_same_length(rewards=batch.rewards_N, users=batch.users_N)
    return batch.target_N / batch.logged_N


def effective_rows(weights_N: Floats) -> float:
    """Kish's effective sample size: (sum w)^2 / sum w^2; 0 where all weights are 0."""
    squares = float(np.square(weights_N).sum())
    return float(weights_N.sum()) ** 2 / squares if squares > 0 else 0.0


def overlap_of(weights_N: Floats) -> Overlap:
    """Of weights as they are, never of clipped ones: clipping hides poor overlap."""
    if weights_N.size == 0:
        return Overlap(0, 0.0, 0.0, 0.0)
    return Overlap(
        num_rows=weights_N.size,
        effective_rows=effective_rows(weights_N),
        max_weight=float(weights_N.max()),
        mean_weight=float(weights_N.mean()),
    )


def why_refused(batch: LoggedBatch, weights_N: Floats, rules: Rules) -> str | None:
    """The first rule that `batch` breaks, with its numbers; None if it may be used."""
    overlap = overlap_of(weights_N)
    least = max(rules.min_effective, rules.min_effective_share * overlap.num_rows)
    if overlap.effective_rows < least:
        return (
            f"effective sample size {overlap.effective_rows:.4g} of {overlap.num_rows} rows, "
            f"expected at least {least:.4g} (largest weight {overlap.max_weight:.4g})"
        )
    below = batch.logged_N < rules.propensity_floor
    if below.any():
        return (
            f"{below.sum()} of {overlap.num_rows} propensities below the floor "
            f"{rules.propensity_floor:g}, the least {batch.logged_N.min():.3g}"
        )
    error_se = float(weights_N.std()) / np.sqrt(overlap.num_rows)
    if abs(overlap.mean_weight - 1) > max(rules.max_weight_error_se * error_se, 1e-6):
        return (
            f"weights average {overlap.mean_weight:.4g}, expected 1 within "
            f"{rules.max_weight_error_se:g} x {error_se:.2g}: wrong propensities, or the target "
            "policy does what the log never did"
        )
    if batch.users_N is not None and len(np.unique(batch.users_N)) < rules.min_users:
        return f"{len(np.unique(batch.users_N))} users, expected at least {rules.min_users}"
    return None


def _range_of(values_N: Floats) -> str:
    return f"{values_N.min():g} to {values_N.max():g}"
