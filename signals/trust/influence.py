"""Detectors 1 and 2: who has more of the window than the caps allow, and how much is young.

They look at weights after the caps, so a finding means that a cap is off, or got round.
"""

import numpy as np

from signals.trust.caps import feasible_share
from signals.trust.columns import FloatArray, NameArray
from signals.trust.finding import Finding, Scope
from signals.trust.window import Window

SLACK = 1.1
"""The stream's shares are of the window before, so they are only near those of this one."""
MIN_MASS = 200.0
"""Weight of a window below which a share says nothing."""
PROBATION_S = 28 * 86_400.0
MAX_YOUNG_REWARD_SHARE = 0.1
"""Of |weight x reward|: five times what the 2 % of weight bring where rewards are as others'."""


def influence(window: Window) -> list[Finding]:
    """1: a user or tenant with more weight than its share."""
    table = window.traces
    return [
        *_over(window, "user", table.account, table.weight, window.max_user_share),
        *_over(window, "tenant", table.tenant, table.weight, window.max_tenant_share),
    ]


def young_accounts(window: Window) -> list[Finding]:
    """2: tenants whose young accounts make up too much of all reward; an alarm."""
    table = window.traces
    mass_E = np.nan_to_num(np.abs(table.weight * table.reward))
    young_E = np.where(table.account_age_s < PROBATION_S, mass_E, 0.0)
    if table.weight.sum() < MIN_MASS or young_E.sum() <= MAX_YOUNG_REWARD_SHARE * mass_E.sum():
        return []
    tenants, index_E = np.unique(table.tenant, return_inverse=True)
    share_G = np.bincount(index_E, young_E) / mass_E.sum()
    return [
        Finding(
            detector="young_accounts", scope="tenant", scope_id=str(name), figure=float(share),
            limit=MAX_YOUNG_REWARD_SHARE, since=window.since, until=window.until, holds=False,
            why=f"accounts younger than four weeks make {share:.1%} of all reward",
        )
        for name, share in zip(tenants, share_G, strict=True)
        if share > MAX_YOUNG_REWARD_SHARE / 2
    ]  # fmt: skip


def _over(
    window: Window, scope: Scope, names_E: NameArray, weights_E: FloatArray, share: float
) -> list[Finding]:
    names, index_E = np.unique(names_E, return_inverse=True)
    mass_G = np.bincount(index_E, weights_E, minlength=len(names))
    total = mass_G.sum()
    limit = SLACK * feasible_share(share, int(np.count_nonzero(mass_G)))
    if not share or total < MIN_MASS:
        return []
    return [
        Finding(
            detector="influence", scope=scope, scope_id=str(name), figure=float(mass / total),
            limit=limit, since=window.since, until=window.until,
            why=f"{mass / total:.1%} of the window's weight",
        )
        for name, mass in zip(names, mass_G, strict=True)
        if mass > limit * total
    ]  # fmt: skip
