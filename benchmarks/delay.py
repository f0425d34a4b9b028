"""Delay, position and off-policy corrections on real data, beside what others would say.

CDNOW: "a second purchase within 180 days", seen at day 90 and 60. It holds nobody who joined before
its first day, so January's customers stand in for the mature cohort; the others are judged. The "as
of" rows need no such help: all was known on the day named. Errors are against what later came. Open
Bandit: item and order drawn at random, with the true propensities.
"""

from typing import NamedTuple

import numpy as np

from benchmarks.datasets import Campaign, Impressions, Purchases, cdnow, open_bandit
from benchmarks.figures import Figure
from signals.debias.delay import DelayFit, Outcomes, corrected_rate, fit_delay, weighted_rate
from signals.debias.delay_models import fit_exponential, kaplan_meier_share
from signals.debias.fits import Bools, Ints, Refused
from signals.debias.off_policy import clipped, ips, snips
from signals.debias.overlap import LoggedBatch, Rules, overlap_of, weights_of
from signals.debias.position import ExaminationFit, fit_examination

DAY_S = 86_400.0
WINDOW_DAYS = 180
LAST_DAY_OF_JANUARY = 30
LAST_DAY = 83  # on which a customer of CDNOW joined
NUM_HALVES = 100
MAX_ERROR = 0.01
AS_OF = ((30, 60), (30, 90), (45, 60), (45, 90))  # window and day of the look, in days
NUM_SHUFFLES = 400
MIN_COVERAGE = 0.95
PLANTED = 0.5
LAST_POSITION = 3
CAMPAIGNS: tuple[Campaign, ...] = ("all", "men", "women")
TOO_LITTLE_OVERLAP: tuple[Campaign, ...] = ("all", "women")
NO_FLOOR = Rules(propensity_floor=0.0)  # Open Bandit promised none


class Rate(NamedTuple):
    """One population at one look: what each method says, and what later came."""

    truth: float
    naive: float
    corrected: float
    weighted: float
    exponential: float
    kaplan_meier: float


def run() -> list[Figure]:
    """All figures; some seconds."""
    figures: list[Figure] = []
    purchases = cdnow()
    for day in (90, 60):
        figures += _rate_figures(_from_january(purchases, day), f"CDNOW day {day}")
        figures.append(_halves_figure(purchases, day))
    for window, day in AS_OF:
        rate = _as_of(purchases, window, day)
        figures += _rate_figures(rate, f"CDNOW as of day {day}, {window} days")[:1]
    return figures + _position_figures() + _off_policy_figures()


def outcomes_of(purchases: Purchases, chosen_N: Bools) -> Outcomes:
    """Joining as a trace, the second purchase as its outcome, in seconds."""
    return Outcomes(
        purchases.first_day_N[chosen_N] * DAY_S, purchases.second_day_N[chosen_N] * DAY_S
    )


def _from_january(purchases: Purchases, day: int) -> Rate:
    everyone_N = np.ones(purchases.first_day_N.size, dtype=bool)
    fit = _fit(outcomes_of(purchases, everyone_N), WINDOW_DAYS, LAST_DAY_OF_JANUARY + WINDOW_DAYS)
    return _rate(fit, outcomes_of(purchases, purchases.first_day_N > LAST_DAY_OF_JANUARY), day)


def _halves_figure(purchases: Purchases, day: int) -> Figure:
    """How much of the above is luck: half the customers, drawn anew, are the mature cohort."""
    random = np.random.default_rng(0)
    errors = []
    for _ in range(NUM_HALVES):
        mature_N = random.random(purchases.first_day_N.size) < 0.5
        fit = _fit(
            outcomes_of(purchases, mature_N),
            WINDOW_DAYS,
            LAST_DAY + WINDOW_DAYS,
            cohort=LAST_DAY + 1,
        )
        others = outcomes_of(purchases, ~mature_N & (purchases.first_day_N <= day))
        rate = corrected_rate(fit, others, now=day * DAY_S)
        if isinstance(rate, Refused):
            raise ValueError(rate.reason)
        delays_N = others.outcome_at_N - others.started_at_N
        errors.append(rate.value - float((delays_N <= fit.window_s).mean()))
    return Figure(
        metric=f"CDNOW day {day}, {NUM_HALVES} random halves: root mean square error",
        unit="share",
        ours=float(np.sqrt(np.mean(np.square(errors)))),
    )


def _as_of(purchases: Purchases, window: int, day: int) -> Rate:
    """Customers whose window is still open on `day`, by a fit made on `day`."""
    everyone_N = np.ones(purchases.first_day_N.size, dtype=bool)
    fit = _fit(outcomes_of(purchases, everyone_N), window, day)
    open_N = (purchases.first_day_N > day - window) & (purchases.first_day_N <= day)
    return _rate(fit, outcomes_of(purchases, open_N), day)


def _fit(outcomes: Outcomes, window: int, day: int, *, cohort: int = 31) -> DelayFit:
    fit = fit_delay(
        outcomes,
        surface="shop",
        made_at=day * DAY_S,
        window_s=window * DAY_S,
        cohort_s=cohort * DAY_S,
    )
    if isinstance(fit, Refused):
        raise ValueError(fit.reason)
    return fit


def _rate(fit: DelayFit, outcomes: Outcomes, day: int) -> Rate:
    now = day * DAY_S
    there_N = outcomes.started_at_N <= now
    delays_N = (outcomes.outcome_at_N - outcomes.started_at_N)[there_N]
    truth = float((delays_N <= fit.window_s).mean())
    corrected = corrected_rate(fit, outcomes, now=now)
    known = outcomes.known_at(now)
    ages_N, seen_N = now - known.started_at_N, known.outcome_at_N - known.started_at_N
    exponential = fit_exponential(ages_N, seen_N)
    if isinstance(corrected, Refused) or isinstance(exponential, Refused):
        raise ValueError(f"{corrected} {exponential}")
    return Rate(
        truth=truth,
        naive=corrected.naive,
        corrected=corrected.value,
        weighted=weighted_rate(fit, outcomes, now=now),
        exponential=exponential.probability
        * -float(np.expm1(-exponential.rate_per_s * fit.window_s)),
        kaplan_meier=kaplan_meier_share(ages_N, seen_N, fit.window_s),
    )


def _rate_figures(rate: Rate, label: str) -> list[Figure]:
    """Our error beside each peer's; the first carries the target."""
    error = abs(rate.corrected - rate.truth)
    peers = {
        "nothing corrected": rate.naive,
        "exponential DFM": rate.exponential,
        "Kaplan-Meier": rate.kaplan_meier,
        "weights alone, floor 0.05": rate.weighted,
    }
    return [
        Figure(
            metric=f"{label}, error of {rate.corrected:.4f} (truth {rate.truth:.4f})",
            unit="share", ours=error, peer=abs(value - rate.truth), peer_name=name,
            ratio=error / abs(value - rate.truth),
            target=None if i else MAX_ERROR, ok=None if i else error <= MAX_ERROR,
        )
        for i, (name, value) in enumerate(peers.items())
    ]  # fmt: skip


def _position_figures() -> list[Figure]:
    logs = [open_bandit("random", campaign) for campaign in CAMPAIGNS]
    positions_N = np.concatenate([log.positions_N for log in logs])
    clicked_N = np.concatenate([log.clicked_N for log in logs])
    fit = _examination(positions_N, clicked_N)
    return [
        Figure(
            metric=f"position {factor.position} over 1, {fit.num_clicks} clicks, "
            f"interval {factor.low:.2f} to {factor.high:.2f}",
            unit="x", ours=factor.factor,
        )
        for factor in fit.factors[1:]
    ] + [
        _coverage_figure("shuffled order, true factor 1", positions_N, clicked_N, 1.0),
        _coverage_figure(f"planted factor {PLANTED}", positions_N, clicked_N, PLANTED),
    ]  # fmt: skip


def _coverage_figure(label: str, positions_N: Ints, clicked_N: Bools, factor: float) -> Figure:
    """Real clicks in an order drawn anew, those at the last position kept with P = `factor`."""
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(NUM_SHUFFLES):
        shuffled_N = random.permutation(positions_N)
        seen_N = (shuffled_N != LAST_POSITION) | (random.random(clicked_N.size) < factor)
        last = _examination(shuffled_N, clicked_N & seen_N).factors[-1]
        hits += last.low <= factor <= last.high
    covered = hits / NUM_SHUFFLES
    return Figure(
        metric=f"position {LAST_POSITION} over 1, {label}: within its interval", unit="share",
        ours=covered, target=MIN_COVERAGE, ok=covered >= MIN_COVERAGE,
    )  # fmt: skip


def _examination(positions_N: Ints, clicked_N: Bools) -> ExaminationFit:
    everything_N = np.ones(positions_N.size, dtype=bool)
    fit = fit_examination(positions_N, clicked_N, everything_N, surface="shop", made_at=0.0)
    if isinstance(fit, Refused):
        raise ValueError(fit.reason)
    return fit


def _off_policy_figures() -> list[Figure]:
    """The uniform policy, valued from Thompson sampling's log; the uniform log is the truth."""
    figures = []
    for campaign in CAMPAIGNS:
        batch = uniform_from(open_bandit("bts", campaign))
        if campaign in TOO_LITTLE_OVERLAP:
            figures.append(_refusal_figure(campaign, batch))
        else:
            truth = float(open_bandit("random", campaign).clicked_N.mean())
            figures.append(_value_figure(campaign, batch, truth))
    return figures


def _refusal_figure(campaign: Campaign, batch: LoggedBatch) -> Figure:
    answers = [estimator(batch, rules=NO_FLOOR) for estimator in (ips, snips, clipped)]
    return Figure(
        metric=f"Open Bandit {campaign}: effective rows of 10,000, refused",
        unit="rows", ours=overlap_of(weights_of(batch)).effective_rows,
        target=NO_FLOOR.min_effective_share * batch.rewards_N.size,
        ok=all(isinstance(answer, Refused) for answer in answers),
    )  # fmt: skip


def _value_figure(campaign: Campaign, batch: LoggedBatch, truth: float) -> Figure:
    estimate = snips(batch, rules=NO_FLOOR)
    if isinstance(estimate, Refused):
        raise ValueError(estimate.reason)
    low, high = estimate.low, estimate.high
    return Figure(
        metric=f"Open Bandit {campaign}: SNIPS, interval {low:.4f} to {high:.4f}",
        unit="clicks", ours=estimate.value, peer=truth, peer_name="the uniform log itself",
        ratio=estimate.value / truth, ok=low <= truth <= high,
    )  # fmt: skip


def uniform_from(log: Impressions) -> LoggedBatch:
    """A campaign's log with the uniform policy as target."""
    uniform_N = np.full(log.propensities_N.size, 1 / log.num_items)
    return LoggedBatch(log.clicked_N.astype(float), log.propensities_N, uniform_N)
