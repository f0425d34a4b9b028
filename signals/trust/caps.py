"""Caps: how much of a batch one user, account or tenant may be. Pure functions on columns.

Shape letter N: rows of one window or batch. A weight is a row's part in a weighted mean; caps only
lower weights. Caps stop one loud user and make many small ones stronger, hence the limits on
young accounts and tenants (research: anchors 4.2).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from signals.trust.columns import FloatArray, NameArray
from tendril.settings import TrustSettings

MAX_ROUNDS = 50
FAIR_SHARES = 2.0
"""Where a limit is below what equals could have, a name may have this many fair shares."""


@dataclass(frozen=True, slots=True)
class Capped:
    """Each row's weight after the caps, and the cap that lowered it most (empty: none)."""

    weights_N: FloatArray
    reasons_N: NameArray


def capped(
    users_N: NameArray,
    tenants_N: NameArray,
    ages_s_N: FloatArray,
    limits: TrustSettings,
    weights_N: FloatArray | None = None,
) -> Capped:
    """Weights of one batch: events a user, then probation, then users' and tenants' shares.

    `ages_s_N`: each row's account age. `weights_N`: what a row counts before (default 1).
    """
    start_N = np.ones(len(users_N)) if weights_N is None else np.asarray(weights_N, float)
    owners_N = account_names(tenants_N, users_N)
    young_N = ages_s_N < limits.probation_s
    now_N = np.where(ages_s_N < limits.new_account_s, 0.0, start_N)
    steps = [("new_account", now_N)]
    now_N = mass_capped(owners_N, now_N, limits.max_user_events)
    steps.append(("user_events", now_N))
    for _ in range(MAX_ROUNDS):  # one limit lowers the sum that the others are shares of
        before_N = now_N
        now_N = share_capped(owners_N, now_N, limits.max_user_share)
        steps.append(("user_share", now_N))
        now_N = share_capped(tenants_N, now_N, limits.max_tenant_share)
        steps.append(("tenant_share", now_N))
        now_N = group_capped(young_N, now_N, limits.max_probation_share)
        steps.append(("probation", now_N))
        if np.allclose(now_N, before_N, rtol=1e-9, atol=0):
            break
    return Capped(now_N, _strongest(start_N, steps))


def account_names(tenants_N: NameArray, users_N: NameArray) -> NameArray:
    """An account is a user of a tenant: one key under two tenants is two accounts."""
    return np.char.add(np.char.add(tenants_N.astype(str), "/"), users_N.astype(str))


def mass_capped(names_N: NameArray, weights_N: FloatArray, limit: float) -> FloatArray:
    """Each name's weights, scaled so that they sum to at most `limit`."""
    if not limit or len(names_N) == 0:
        return weights_N
    _, index_N = np.unique(names_N, return_inverse=True)
    mass_G = np.bincount(index_N, weights_N).astype(float)
    scale_G = np.divide(limit, mass_G, out=np.ones_like(mass_G), where=mass_G > limit)
    return np.asarray(weights_N * scale_G[index_N], float)


def share_capped(names_N: NameArray, weights_N: FloatArray, share: float) -> FloatArray:
    """Each name's weights, scaled so that no name has more than `feasible(share)` of the sum.

    The sum is the one after capping, so the limit holds exactly: c solves c = share * sum of
    min(mass, c).
    """
    if not share or len(names_N) == 0:
        return weights_N
    _, index_N = np.unique(names_N, return_inverse=True)
    mass_G = np.bincount(index_N, weights_N).astype(float)
    limit = _level(mass_G, feasible_share(share, int(np.count_nonzero(mass_G))))
    return mass_capped(names_N, weights_N, limit)


def feasible_share(share: float, num_names: int) -> float:
    """`share`, or where `num_names` are too few for it, `FAIR_SHARES` times an equal part."""
    return min(1.0, max(share, FAIR_SHARES / max(1, num_names)))


def group_capped(member_N: NDArray[np.bool_], weights_N: FloatArray, share: float) -> FloatArray:
    """Members' weights, scaled so that together they have at most `share` of the sum."""
    if not share:
        return weights_N
    inside, outside = weights_N[member_N].sum(), weights_N[~member_N].sum()
    allowed = share / (1 - share) * outside
    if inside <= allowed:
        return weights_N
    return np.where(member_N, weights_N * (allowed / inside), weights_N)


def influence_bound(share: float, true_mean: float) -> float:
    """The furthest that rewards of 1 on `share` of the weight move a mean: share * (1 - mean)."""
    return share * (1.0 - true_mean)


def _level(mass_G: FloatArray, share: float) -> float:
    """The largest c with c <= share * sum(min(mass, c)).

    With the k largest masses cut to c: c = share * (rest_k + k c), so c = share * rest_k /
    (1 - k share). 0 (no limit) where nothing exceeds its share.
    """
    descending_G = np.sort(mass_G)[::-1]
    rest_G = descending_G.sum() - np.cumsum(descending_G)
    if descending_G[0] <= share * descending_G.sum():
        return 0.0
    for k, rest in enumerate(rest_G, start=1):
        if k * share >= 1:
            break
        level = share * rest / (1 - k * share)
        if k == len(descending_G) or descending_G[k] <= level:
            return float(level)
    return float(descending_G[descending_G > 0].min())


def _strongest(start_N: FloatArray, steps: list[tuple[str, FloatArray]]) -> NameArray:
    """For each row the step that took the largest factor away."""
    best_N, names_N, before_N = np.ones(len(start_N)), np.full(len(start_N), "", "U16"), start_N
    for name, after_N in steps:
        factor_N = np.divide(after_N, before_N, out=np.ones_like(after_N), where=before_N > 0)
        stronger_N = factor_N < best_N - 1e-12
        best_N = np.where(stronger_N, factor_N, best_N)
        names_N = np.where(stronger_N, name, names_N)
        before_N = after_N
    return names_N
