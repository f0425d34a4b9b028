"""Values of two policies estimated from the same logged decisions, paired.

Self-normalised importance sampling: V = sum(w x) / sum(w), whatever the zero of x.
Intervals: delta method on sums by cluster (session), Student's t with clusters - 1 degrees of
freedom, so few sessions give wide intervals. Letter: N = logged decisions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_RATIO = 10.0
"""Clip of one decision's ratio: bounds the variance, biases towards the logged policy."""
Z_975 = 1.959964
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedValue:
    """Candidate against live on one quantity; intervals are 95 %, two-sided."""

    candidate: float
    live: float
    difference: float
    difference_ci95: tuple[float, float]
    relative_change: float | None
    """candidate / live - 1; None where the live value is not above zero."""
    relative_ci95: tuple[float, float] | None


def importance_ratio(policy_N: Floats, behavior_N: Floats) -> Floats:
    """exp(policy - behavior) of summed log-probs [N], clipped at `MAX_RATIO`."""
    log_ratio_N: Floats = np.minimum(policy_N - behavior_N, math.log(MAX_RATIO))
    return np.exp(log_ratio_N)


def effective_samples(weight_N: Floats) -> float:
    """(sum w)^2 / sum w^2; 0 where no weight is left."""
    squares = float((weight_N**2).sum())
    return float(weight_N.sum()) ** 2 / squares if squares > 0 else 0.0


def paired_value(
    x_N: Floats, candidate_weight_N: Floats, live_weight_N: Floats, clusters: Sequence[str]
) -> PairedValue:
    """The value of x under both policies. Weights need a positive sum, clusters two members."""
    candidate, candidate_influence_N = _value(x_N, candidate_weight_N)
    live, live_influence_N = _value(x_N, live_weight_N)
    difference = candidate - live
    half_width = _half_width(candidate_influence_N - live_influence_N, clusters)
    relative: float | None = None
    relative_ci95: tuple[float, float] | None = None
    if live > 0:
        relative = candidate / live - 1.0
        influence_N = (candidate_influence_N - candidate / live * live_influence_N) / live
        relative_half = _half_width(influence_N, clusters)
        relative_ci95 = (relative - relative_half, relative + relative_half)
    return PairedValue(
        candidate=candidate,
        live=live,
        difference=difference,
        difference_ci95=(difference - half_width, difference + half_width),
        relative_change=relative,
        relative_ci95=relative_ci95,
    )


def _value(x_N: Floats, weight_N: Floats) -> tuple[float, Floats]:
    """The self-normalised mean and each decision's influence on it."""
    value = float((weight_N * x_N).sum() / weight_N.sum())
    return value, weight_N * (x_N - value) / weight_N.mean()


def _half_width(influence_N: Floats, clusters: Sequence[str]) -> float:
    """Half of the 95 % interval of a mean with these influences."""
    _, cluster_N = np.unique(np.asarray(clusters), return_inverse=True)
    sums = np.bincount(cluster_N, weights=influence_N)
    num_clusters = len(sums)
    variance = num_clusters / (num_clusters - 1) * float((sums**2).sum()) / len(influence_N) ** 2
    return t_975(num_clusters - 1) * math.sqrt(variance)


def t_975(degrees: int) -> float:
    """0.975 quantile of Student's t by Cornish-Fisher, within 1 % from 4 degrees up."""
    z, n = Z_975, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
