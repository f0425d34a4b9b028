"""Detector 13: what the join could not use. Alarms only: the rows are already accounted for."""

import math
from collections.abc import Mapping

from signals.trust.figures import ERROR_LIMIT, MAD_LIMIT, baseline
from signals.trust.finding import Finding
from signals.trust.window import Window

LIMITS: Mapping[str, float] = {
    "feedback/orphan": 0.02,
    "feedback/late": 0.05,
    "feedback/duplicate": 0.05,
    "feedback/invalid": 0.02,
    "traces/duplicate": 0.02,
    "traces/invalid": 0.01,
    "traces/never_closed": 0.05,
}
"""Shares of what was read. In a week of history a figure may also be 4 MAD above its median."""
MIN_READ = 200


def join_health(window: Window) -> list[Finding]:
    """13: shares of orphans, late, repeated and unusable records; a policy that nobody named."""
    found = []
    for name, (share, num_read) in shares_of(window.ledger).items():
        limit = _limit(window, name, num_read)
        if share > limit:
            found.append(_alarm(window, name, share, limit, f"{share:.1%} of {num_read} read"))
    nameless = int((window.traces.policy_version < 0).sum())
    if nameless:
        why = f"{nameless} judged traces name no policy version"
        found.append(_alarm(window, "traces/no_policy", float(nameless), 0.0, why))
    return found


def shares_of(ledger: Mapping[str, Mapping[str, int]]) -> dict[str, tuple[float, int]]:
    """(share, number read) by kind and fate; none where too little was read."""
    found = {}
    for name in LIMITS:
        kind, _, fate = name.partition("/")
        num_read = ledger.get(kind, {}).get("read", 0)
        if num_read >= MIN_READ:
            found[name] = (ledger[kind].get(fate, 0) / num_read, num_read)
    return found


def _limit(window: Window, name: str, num_read: int) -> float:
    """The fixed limit, or lower where a week says that so much is not usual here."""
    normal = baseline(window.history.get(name, ()))
    if normal is None:
        return LIMITS[name]
    error = math.sqrt(max(normal.median, 1 / num_read) / num_read)
    usual = normal.median + max(MAD_LIMIT * normal.mad, 2 * ERROR_LIMIT * error)
    return min(LIMITS[name], usual) if normal.median < LIMITS[name] else usual


def _alarm(window: Window, name: str, figure: float, limit: float, why: str) -> Finding:
    return Finding(
        detector="join_health", scope="service", scope_id=name, figure=figure, limit=limit,
        since=window.since, until=window.until, why=why, holds=False,
    )  # fmt: skip
