"""Which weight an outcome seen at some age gets: what the joiner and a recipe ask.

    weight = delays.weights_at(age_s=..., surface=...)     of an outcome that has come
    recipe names delays.digest beside its own

Components whose delays differ get a fit each, under a surface named `route/component`. An outcome
that has not come yet is not 0: it stays pending, and has no weight. A weighted outcome is
provisional; the final revision, made when the window is over, has weight 1 by construction.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from signals.debias.delay import DelayFit, Outcomes, fit_delay
from signals.debias.fits import Refused, digest_of_fit

DRIFT_P_VALUE = 1e-4
MIN_DELAYS = 50


class DelayWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The newest fit of each surface; a surface without one is not corrected."""

    fits: tuple[DelayFit, ...] = ()

    @property
    def digest(self) -> str:
        """Names all fits together."""
        return digest_of_fit(self)

    def weights_at(self, age_s: float, surface: str) -> float:
        """What an outcome seen by `age_s` stands for, at least 1; 1 where nothing is known."""
        for fit in self.fits:
            if fit.surface == surface:
                return fit.weight_at(age_s)
        return 1.0

    def to_bytes(self) -> bytes:
        """JSON, the same for the same fits."""
        return msgspec.json.encode(self, order="sorted")


NO_CORRECTION = DelayWeights()


class Refit(NamedTuple):
    """New weights, and what kept a surface from a new fit."""

    weights: DelayWeights
    refused: tuple[Refused, ...]
    drifted: tuple[str, ...]
    """Surfaces whose delays are no longer those of the fit in use."""


class Drift(NamedTuple):
    """How far recent delays are from the mature cohort's, both cut at `up_to_s`."""

    distance: float
    p_value: float
    num_recent: int

    @property
    def alarm(self) -> bool:
        """Too far for chance."""
        return self.p_value < DRIFT_P_VALUE


def read_weights(data: bytes) -> DelayWeights:
    """The inverse of `DelayWeights.to_bytes`. Raises `ValueError`."""
    return msgspec.json.decode(data, type=DelayWeights)


def refit(
    outcomes_by_surface: Mapping[str, Outcomes],
    previous: DelayWeights,
    *,
    made_at: float,
    window_s: float,
    cohort_s: float,
) -> Refit:
    """The daily refit: a surface that cannot be fitted keeps the fit it had, with the reason."""
    fits = {fit.surface: fit for fit in previous.fits}
    refused: list[Refused] = []
    drifted: list[str] = []
    for surface, outcomes in sorted(outcomes_by_surface.items()):
        fit = fit_delay(
            outcomes, surface=surface, made_at=made_at, window_s=window_s, cohort_s=cohort_s
        )
        if isinstance(fit, Refused):
            refused.append(fit)
        else:
            fits[surface] = fit
        if surface in fits and delay_drift(fits[surface], outcomes, now=made_at).alarm:
            drifted.append(surface)
    weights = DelayWeights(fits=tuple(fits[surface] for surface in sorted(fits)))
    return Refit(weights, tuple(refused), tuple(drifted))


def delay_drift(fit: DelayFit, outcomes: Outcomes, *, now: float) -> Drift:
    """Two-sample Kolmogorov-Smirnov: traces younger than the cohort against the fit itself.

    Recent traces are followed only so far, so both sides keep delays up to half the window, from
    traces at least that old: a change shows half a window before they are mature.
    """
    up_to_s = fit.window_s / 2
    known = outcomes.known_at(now)
    recent_N = (known.started_at_N > fit.cohort_to) & (known.started_at_N <= now - up_to_s)
    delays_N = (known.outcome_at_N - known.started_at_N)[recent_N]
    recent = np.sort(np.maximum(delays_N[delays_N <= up_to_s], 0.0))
    share = fit.share_at(up_to_s)
    if recent.size < MIN_DELAYS or share * fit.num_outcomes < MIN_DELAYS:
        return Drift(0.0, 1.0, recent.size)
    from scipy import special

    points_s = np.unique(np.concatenate([recent, np.array(fit.delays_s)]))
    points_s = points_s[points_s <= up_to_s]
    recent_F = np.searchsorted(recent, points_s, side="right") / recent.size
    distance = float(np.abs(recent_F - fit.shares_at(points_s) / share).max())
    mature = share * fit.num_outcomes
    scale = np.sqrt(mature * recent.size / (mature + recent.size))
    return Drift(distance, float(special.kolmogorov(scale * distance)), recent.size)
