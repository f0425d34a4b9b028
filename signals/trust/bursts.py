"""Detector 5: more votes on one trace or policy than chance brings (Poisson tail).

Accounts are counted, not votes: one account's many votes are one. The rate of a policy comes from
the past week's windows and is widened by their spread, because people do not vote like raindrops.
"""

import math

import numpy as np

from signals.trust.columns import BoolArray, NameArray
from signals.trust.figures import MAD_LIMIT, baseline
from signals.trust.finding import Finding, Scope
from signals.trust.window import Window

MAX_TAIL = 1e-6
VOTERS_A_TRACE = 0.5
"""Expected at most: a reply is read by the one who asked, and sometimes by somebody else."""
VOTES = ("feedback.vote", "feedback.rating")


def bursts(window: Window) -> list[Finding]:
    """5: traces with too many voters, and policies with too many of one sign."""
    events = window.events
    votes_F = np.isin(events.type, VOTES) & (events.value != 0)
    found = []
    for trace_id, voters in _voters(events.trace_id, events.account, votes_F).items():
        tail = poisson_tail(voters, VOTERS_A_TRACE)
        if tail < MAX_TAIL:
            found.append(_finding(window, "trace", trace_id, tail, f"{voters} accounts voted"))
    return found + _by_policy(window, votes_F)


def vote_rates(window: Window) -> dict[str, float]:
    """Voters a shown trace, by sign: what history remembers for this detector."""
    events, shown = window.events, max(1.0, float(np.nansum(window.traces.shown)))
    votes_F = np.isin(events.type, VOTES) & (events.value != 0)
    return {
        f"voters/{name}": _pairs(events.account, events.policy_version, votes_F & sign_F) / shown
        for name, sign_F in (("up", events.value > 0), ("down", events.value < 0))
    }


def poisson_tail(count: int, rate: float) -> float:
    """P(X >= count) for X ~ Poisson(rate)."""
    from scipy.stats import poisson

    return float(poisson.sf(count - 1, rate))


def _by_policy(window: Window, votes_F: BoolArray) -> list[Finding]:
    events, table = window.events, window.traces
    found = []
    for name, sign_F in (("up", events.value > 0), ("down", events.value < 0)):
        normal = baseline(window.history.get(f"voters/{name}", ()))
        if normal is None:
            continue
        upper = normal.median + MAD_LIMIT * normal.mad
        voters = _voters(events.policy_version.astype(str), events.account, votes_F & sign_F)
        for version, count in voters.items():
            shown = float(np.nansum(table.shown[table.policy_version == int(version)]))
            tail = poisson_tail(count, max(1.0, upper * shown))
            if tail < MAX_TAIL:
                why = f"{count} accounts voted {name} on {shown:.0f} shown"
                found.append(_finding(window, "policy", version, tail, why))
    return found


def _voters(names_F: NameArray, accounts_F: NameArray, votes_F: BoolArray) -> dict[str, int]:
    pairs = np.unique(np.stack([names_F[votes_F], accounts_F[votes_F]], 1), axis=0)
    names, counts = np.unique(pairs[:, 0], return_counts=True)
    return {str(name): int(n) for name, n in zip(names, counts, strict=True)}


def _pairs(accounts_F: NameArray, versions_F: np.ndarray, votes_F: BoolArray) -> int:
    return sum(_voters(versions_F.astype(str), accounts_F, votes_F).values())


def _finding(window: Window, scope: Scope, name: str, tail: float, why: str) -> Finding:
    tail = max(tail, math.ulp(0.0))
    return Finding(
        detector="bursts", scope=scope, scope_id=name, figure=tail, limit=MAX_TAIL,
        since=window.since, until=window.until, why=f"{why}; by chance with P = {tail:.1e}",
    )  # fmt: skip
