"""Outcomes that take their time: the share of them that has shown itself by a given age.

A trace of age a has shown an outcome that will come within the window with probability F(a), the
delay's distribution, measured on the latest cohort whose window is over. An outcome seen at age a
therefore stands for 1 / F(a) of them (the inverse-delay weight of FSIW; anchors 3.2). Times are the
log's, in seconds. Shapes: N = traces; NaN as an outcome's time: none came.
"""

from bisect import bisect_right
from typing import NamedTuple

import msgspec
import numpy as np

from signals.debias.fits import (
    Bools,
    Floats,
    Refused,
    check_finite,
    check_same_length,
    digest_of_fit,
    floats,
)

FLOOR = 0.05
MAX_KNOTS = 1_024
MIN_OUTCOMES = 100
"""Below it F is known to no better than a few points."""


class Outcomes(NamedTuple):
    """When each trace was logged and when its outcome was, if it was."""

    started_at_N: Floats
    outcome_at_N: Floats

    def known_at(self, cutoff: float) -> "Outcomes":
        """The same as it stood at `cutoff`: later traces absent, later outcomes not yet there."""
        there_N = self.started_at_N <= cutoff
        outcome_at_N = self.outcome_at_N[there_N]
        return Outcomes(
            self.started_at_N[there_N],
            np.where(outcome_at_N <= cutoff, outcome_at_N, np.nan),
        )


class DelayFit(msgspec.Struct, frozen=True, kw_only=True):
    """F on one surface, from one cohort: straight between its knots, 1 from the window's end on."""

    surface: str
    made_at: float
    window_s: float
    cohort_from: float
    cohort_to: float
    """Traces logged in (cohort_from, cohort_to]; at `made_at` the last one's window was over."""
    num_traces: int
    num_outcomes: int
    delays_s: tuple[float, ...]
    """Ascending."""
    shares: tuple[float, ...]
    """F at each of `delays_s`."""

    @property
    def digest(self) -> str:
        """Names this fit."""
        return digest_of_fit(self)

    def share_at(self, age_s: float) -> float:
        """F(age_s), in [0, 1]."""
        if age_s >= self.window_s:
            return 1.0
        after = bisect_right(self.delays_s, age_s)
        if after == len(self.delays_s):
            return self.shares[-1]
        low_s, low = (self.delays_s[after - 1], self.shares[after - 1]) if after else (0.0, 0.0)
        if age_s <= low_s:
            return low
        part = (age_s - low_s) / (self.delays_s[after] - low_s)
        return low + part * (self.shares[after] - low)

    def weight_at(self, age_s: float) -> float:
        """1 / max(F, `FLOOR`): what an outcome seen by this age stands for; 1 once mature."""
        return 1 / max(self.share_at(age_s), FLOOR)

    def shares_at(self, ages_s_N: Floats) -> Floats:
        """`share_at` for a column [N]."""
        knots_s, shares = np.array(self.delays_s), np.array(self.shares)
        if knots_s[0] > 0:
            knots_s, shares = np.append(0.0, knots_s), np.append(0.0, shares)
        between_N = np.interp(ages_s_N, knots_s, shares, left=0.0)
        return np.where(ages_s_N >= self.window_s, 1.0, between_N)


class CorrectedRate(NamedTuple):
    """Share of traces whose outcome will have come when their window is over."""

    value: float
    low: float
    high: float
    """95 %, the fit taken as exact."""
    naive: float
    """Share seen so far."""
    num_used: int
    """Traces old enough (F >= `FLOOR`) to say anything."""


def fit_delay(
    outcomes: Outcomes, *, surface: str, made_at: float, window_s: float, cohort_s: float
) -> DelayFit | Refused:
    """Fit on traces logged in the latest `cohort_s` whose windows are over at `made_at`.

    What was logged after `made_at` cannot matter: no such trace or outcome lies in the cohort.
    """
    check_same_length(started_at=outcomes.started_at_N, outcome_at=outcomes.outcome_at_N)
    check_finite(started_at=outcomes.started_at_N)
    cohort_to = made_at - window_s
    cohort_from = cohort_to - cohort_s
    started_at_N = outcomes.started_at_N
    in_cohort_N = (started_at_N > cohort_from) & (started_at_N <= cohort_to)
    delays_N = (outcomes.outcome_at_N - started_at_N)[in_cohort_N]
    delays = np.sort(delays_N[delays_N <= window_s])  # NaN compares false
    if delays.size < MIN_OUTCOMES:
        return Refused(
            f"delays of {surface}",
            f"{delays.size} outcomes in a mature cohort of {in_cohort_N.sum()} traces, "
            f"expected at least {MIN_OUTCOMES}",
        )
    knots_s, shares = _knots(np.maximum(delays, 0.0))
    return DelayFit(
        surface=surface,
        made_at=made_at,
        window_s=window_s,
        cohort_from=cohort_from,
        cohort_to=cohort_to,
        num_traces=int(in_cohort_N.sum()),
        num_outcomes=delays.size,
        delays_s=floats(knots_s),
        shares=floats(shares),
    )


def corrected_rate(fit: DelayFit, outcomes: Outcomes, *, now: float) -> CorrectedRate | Refused:
    """sum(seen) / sum(F(age)) over traces with F >= `FLOOR`; exact in expectation.

    Flooring the weights of younger traces instead would count them too low: they are left out.
    """
    known = outcomes.known_at(now)
    ages_s_N = now - known.started_at_N
    shares_N = fit.shares_at(ages_s_N)
    seen_N = _seen(known, fit.window_s)
    old_N = shares_N >= FLOOR
    if not old_N.any():
        return Refused(f"rate on {fit.surface}", f"no trace with F(age) >= {FLOOR}")
    seen, shares = seen_N[old_N].astype(float), shares_N[old_N]
    value = float(seen.sum() / shares.sum())
    spread = float(np.sqrt(np.square(seen - value * shares).sum())) / float(shares.sum())
    naive = float(seen_N.mean())
    return CorrectedRate(value, value - 1.96 * spread, value + 1.96 * spread, naive, seen.size)


def weighted_rate(fit: DelayFit, outcomes: Outcomes, *, now: float) -> float:
    """mean(seen * weight_at(age)): what the per-trace weights give; low by what the floor holds."""
    known = outcomes.known_at(now)
    shares_N = np.maximum(fit.shares_at(now - known.started_at_N), FLOOR)
    return float((_seen(known, fit.window_s) / shares_N).mean())


def _seen(known: Outcomes, window_s: float) -> Bools:
    return np.asarray(known.outcome_at_N - known.started_at_N <= window_s)


def _knots(delays: Floats) -> tuple[Floats, Floats]:
    """Distinct delays and F there; of very many, those at equal steps of F, both ends included."""
    knots_s, counts = np.unique(delays, return_counts=True)
    shares = np.cumsum(counts) / delays.size
    if knots_s.size > MAX_KNOTS:
        chosen = np.linspace(0, knots_s.size - 1, MAX_KNOTS).round().astype(int)
        return knots_s[chosen], shares[chosen]
    return knots_s, shares
