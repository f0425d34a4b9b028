"""Detectors 14 and 15: an experiment whose arms or probabilities are not what they should be."""

import math
from collections.abc import Mapping

import numpy as np

from signals.debias.overlap import Rules, effective_rows
from signals.trust.columns import NameArray
from signals.trust.finding import Finding
from signals.trust.window import Window

ALARM_P, BLOCK_P = 1e-3, 1e-4
RULES = Rules()
"""A weighted estimate on fewer effective rows rests on a handful of them."""
SUM_TOLERANCE = 1e-6


def sample_ratio(window: Window) -> list[Finding]:
    """14: sample ratio mismatch, by chi-square, with each user counted once in each arm."""
    if not window.arm_shares:
        return []
    counts = arm_counts(window.traces.arm, window.traces.account)
    p = sample_ratio_p(counts, window.arm_shares)
    if p >= ALARM_P:
        return []
    return [_alarm(window, "sample_ratio", "arms", p, ALARM_P, f"accounts by arm {counts}"
            + (": block the experiment" if p < BLOCK_P else ""))]  # fmt: skip


def arm_counts(arms_E: NameArray, accounts_E: NameArray) -> dict[str, int]:
    """Accounts by arm: the split draws users, so rows of one user are one draw."""
    pairs = np.unique(np.stack([arms_E, accounts_E], 1), axis=0)
    names, counts = np.unique(pairs[:, 0], return_counts=True)
    return {str(name): int(n) for name, n in zip(names, counts, strict=True)}


def sample_ratio_p(counts: Mapping[str, int], shares: Mapping[str, float]) -> float:
    """Chi-square p-value of the counts under the shares; 0 for an arm that should not be."""
    from scipy.stats import chisquare

    if any(counts.get(arm) for arm in counts if not shares.get(arm)):
        return 0.0
    total, whole = sum(counts.values()), sum(shares.values())
    arms = [arm for arm, share in sorted(shares.items()) if share > 0]
    if total == 0 or len(arms) < 2:
        return 1.0
    got = [counts.get(arm, 0) for arm in arms]
    return float(chisquare(got, [total * shares[arm] / whole for arm in arms]).pvalue)


def propensities(window: Window) -> list[Finding]:
    """15: probabilities outside [floor, 1], arms that do not sum to 1, weights on few rows."""
    values_E, floor = window.traces.propensity, window.propensity_floor
    wrong = int(np.count_nonzero(~((values_E >= floor) & (values_E <= 1))))
    found = []
    if wrong:
        why = f"{wrong} of {len(values_E)} propensities outside [{floor}, 1]"
        found.append(_alarm(window, "propensities", "range", float(wrong), 0.0, why))
    whole = math.fsum(window.arm_shares.values())
    if window.arm_shares and abs(whole - 1) > SUM_TOLERANCE:
        found.append(_alarm(window, "propensities", "sum", whole, 1.0, "arms' shares do not sum"))
    usable_E = values_E[(values_E > 0) & (values_E <= 1)]
    ess, least = (
        effective_rows(1 / usable_E),
        max(RULES.min_effective, RULES.min_effective_share * len(values_E)),
    )
    if len(values_E) >= RULES.min_effective and ess < least:
        why = f"{ess:.0f} effective rows of {len(values_E)}"
        found.append(_alarm(window, "propensities", "effective_rows", ess, least, why))
    return found


def _alarm(
    window: Window, detector: str, name: str, figure: float, limit: float, why: str
) -> Finding:
    return Finding(
        detector=detector, scope="service", scope_id=name, figure=figure, limit=limit,
        since=window.since, until=window.until, why=why, holds=False,
    )  # fmt: skip
