"""What a policy would have earned, from decisions that another one made and logged.

Shapes: N = logged decisions. Intervals: Student's t on the linearised estimate, by user where users
are given. Every estimator refuses what `overlap.Rules` forbid; that is an answer, not an error.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from signals.debias.fits import Floats, Refused, check_finite, check_same_length, group_sums
from signals.debias.overlap import LoggedBatch, Overlap, Rules, overlap_of, weights_of, why_refused

Method = Literal["ips", "snips", "clipped", "doubly_robust", "switch"]
RULES = Rules()
CLIP = 10.0
CONFIDENCE = 0.95


class Modelled(NamedTuple):
    """A reward model's word, made without the row it is used on (`reward_model`)."""

    logged_action_N: Floats
    """q(x, a) of the action taken."""
    target_policy_N: Floats
    """sum over a of target(a | x) q(x, a)."""


class Estimate(NamedTuple):
    """A policy's mean reward and how sure that is."""

    method: Method
    value: float
    low: float
    high: float
    overlap: Overlap
    cut_share: float = 0.0
    """Share of the weight that the clip cut off or the switch left to the model."""


def ips(batch: LoggedBatch, *, rules: Rules = RULES) -> Estimate | Refused:
    """Inverse propensity scoring: mean(w r). Unbiased. Horvitz and Thompson 1952."""
    weights_N = weights_of(batch)
    return _estimate("ips", batch, weights_N, weights_N * batch.rewards_N, rules)


def snips(batch: LoggedBatch, *, rules: Rules = RULES) -> Estimate | Refused:
    """Self-normalised: sum(w r) / sum(w). Swaminathan and Joachims 2015, equation 6."""
    weights_N = weights_of(batch)
    terms_N = _self_normalised(weights_N, batch.rewards_N)
    return _estimate("snips", batch, weights_N, terms_N, rules)


def clipped(batch: LoggedBatch, *, clip: float = CLIP, rules: Rules = RULES) -> Estimate | Refused:
    """SNIPS with weights min(w, clip); biased towards what the log did often. Anchors 3.1.

    Gated on the unclipped weights all the same.
    """
    weights_N = weights_of(batch)
    cut_N = np.minimum(weights_N, clip)
    terms_N = _self_normalised(cut_N, batch.rewards_N)
    return _estimate("clipped", batch, weights_N, terms_N, rules, kept_N=cut_N)


def doubly_robust(
    batch: LoggedBatch, modelled: Modelled, *, rules: Rules = RULES
) -> Estimate | Refused:
    """mean(v + w (r - q)): right if model or propensities are. Dudik et al. 2011, equation 2."""
    weights_N = weights_of(batch)
    _check(batch, modelled)
    terms_N = modelled.target_policy_N + weights_N * (batch.rewards_N - modelled.logged_action_N)
    return _estimate("doubly_robust", batch, weights_N, terms_N, rules)


def switch(
    batch: LoggedBatch, modelled: Modelled, *, max_weight: float = CLIP, rules: Rules = RULES
) -> Estimate | Refused:
    """Doubly robust, with the model alone where w > max_weight. Wang et al. 2017, section 4."""
    weights_N = weights_of(batch)
    _check(batch, modelled)
    kept_N = np.where(weights_N <= max_weight, weights_N, 0.0)
    terms_N = modelled.target_policy_N + kept_N * (batch.rewards_N - modelled.logged_action_N)
    return _estimate("switch", batch, weights_N, terms_N, rules, kept_N=kept_N)


def _self_normalised(weights_N: Floats, rewards_N: Floats) -> Floats:
    """Terms whose mean is sum(w r) / sum(w) and whose spread is its delta-method variance."""
    total = float(weights_N.sum())
    if total <= 0:
        return np.zeros_like(rewards_N)
    value = float(weights_N @ rewards_N) / total
    return value + weights_N * (rewards_N - value) * (weights_N.size / total)


def _estimate(
    method: Method,
    batch: LoggedBatch,
    weights_N: Floats,
    terms_N: Floats,
    rules: Rules,
    *,
    kept_N: Floats | None = None,
) -> Estimate | Refused:
    reason = why_refused(batch, weights_N, rules)
    if reason:
        return Refused(what=method, reason=reason)
    value = float(terms_N.mean())
    half = half_width(terms_N - value, batch.users_N)
    cut_share = 0.0 if kept_N is None else 1 - float(kept_N.sum() / weights_N.sum())
    return Estimate(method, value, value - half, value + half, overlap_of(weights_N), cut_share)


def half_width(
    deviations_N: Floats, users_N: NDArray[Any] | None, *, confidence: float = CONFIDENCE
) -> float:
    """Of the interval around a mean of N terms, given each term's deviation from it.

    By user where there are users: their sums are independent (Liang and Zeger 1986).
    """
    from scipy import stats

    sums_G = deviations_N if users_N is None else group_sums(deviations_N, users_N)
    num_groups = sums_G.size
    variance = float(np.square(sums_G).sum()) * num_groups / max(num_groups - 1, 1)
    quantile = float(stats.t.ppf((1 + confidence) / 2, max(num_groups - 1, 1)))
    return quantile * float(np.sqrt(variance)) / deviations_N.size


def _check(batch: LoggedBatch, modelled: Modelled) -> None:
    check_same_length(
        rewards=batch.rewards_N,
        logged_action=modelled.logged_action_N,
        target_policy=modelled.target_policy_N,
    )
    check_finite(logged_action=modelled.logged_action_N, target_policy=modelled.target_policy_N)
