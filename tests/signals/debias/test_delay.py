"""Delayed outcomes: the share that has come by an age, on planted delays and on CDNOW."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.datasets import cdnow
from benchmarks.delay import DAY_S, outcomes_of, run
from signals.debias.delay import (
    FLOOR,
    MAX_KNOTS,
    CorrectedRate,
    DelayFit,
    Outcomes,
    corrected_rate,
    fit_delay,
    weighted_rate,
)
from signals.debias.delay_weights import (
    NO_CORRECTION,
    DelayWeights,
    delay_drift,
    read_weights,
    refit,
)
from signals.debias.fits import Refused

WINDOW_S = 1_000.0
RATE = 0.4


def stream(
    seed: int, *, n: int = 20_000, mean_s: float = 200.0, until: float = 5_000.0
) -> Outcomes:
    """Traces at all times up to `until`; `RATE` of them turn, after an exponential delay."""
    random = np.random.default_rng(seed)
    started = np.sort(random.uniform(0, until, n))
    # cut at the window's end, so that RATE is exact
    delays = -mean_s * np.log1p(-random.random(n) * -np.expm1(-WINDOW_S / mean_s))
    return Outcomes(started, np.where(random.random(n) < RATE, started + delays, np.nan))


def fitted(outcomes: Outcomes, *, made_at: float = 5_000.0, surface: str = "editor") -> DelayFit:
    fit = fit_delay(outcomes, surface=surface, made_at=made_at, window_s=WINDOW_S, cohort_s=2_000.0)
    assert isinstance(fit, DelayFit), fit
    return fit


def by_hand() -> DelayFit:
    """Delays 10, 20, 20, 40, twenty-five of each."""
    delays = np.repeat([10.0, 20.0, 20.0, 40.0], 25)
    return fitted(Outcomes(np.full(100, 3_000.0), 3_000.0 + delays))


@pytest.mark.parametrize(
    ("age_s", "share"),
    [
        (-1, 0),
        (0, 0),
        (5, 0.125),
        (10, 0.25),
        (15, 0.5),
        (20, 0.75),
        (30, 0.875),
        (40, 1),
        (2e3, 1),
    ],
)
def test_the_share_runs_straight_between_the_delays_that_were_seen(
    age_s: float, share: float
) -> None:
    fit = by_hand()
    assert fit.share_at(age_s) == pytest.approx(share)
    assert fit.shares_at(np.array([age_s])) == pytest.approx([share])
    assert fit.weight_at(age_s) == pytest.approx(1 / max(share, FLOOR))


def test_an_outcome_at_once_has_its_share_from_the_start() -> None:
    delays = np.repeat([0.0, 100.0], [50, 50])
    fit = fitted(Outcomes(np.full(100, 3_000.0), 3_000.0 + delays))
    assert (fit.share_at(0.0), fit.share_at(50.0)) == (0.5, 0.75)
    assert fit.shares_at(np.array([-1.0, 0.0, 50.0])).tolist() == [0, 0.5, 0.75]


@given(st.lists(st.floats(-10, 2_000), min_size=2, max_size=20))
def test_weights_never_rise_with_age_and_end_at_one(ages_s: list[float]) -> None:
    fit = by_hand()
    weights = [fit.weight_at(age_s) for age_s in sorted(ages_s)]
    assert weights == sorted(weights, reverse=True)
    assert max(weights) <= 1 / FLOOR
    assert fit.weight_at(WINDOW_S) == 1


def test_only_the_latest_cohort_whose_window_is_over_is_read() -> None:
    """Older and younger traces turn at once and would make every delay look short."""
    cohort = Outcomes(np.full(200, 3_000.0), np.full(200, 3_500.0))
    others = np.array([1_999.0, 2_000.0, 4_001.0, 4_500.0] * 500)
    both = Outcomes(
        np.concatenate([cohort.started_at_N, others]), np.concatenate([cohort.outcome_at_N, others])
    )
    assert fitted(both) == fitted(cohort)
    assert fitted(cohort).delays_s == (500.0,)


@pytest.mark.parametrize("made_at", [3_000.0, 4_000.0, 4_900.0])
def test_a_fit_uses_only_what_was_known_when_it_was_made(made_at: float) -> None:
    whole = stream(1)
    cut = whole.known_at(made_at)
    assert cut.started_at_N.max() <= made_at
    assert np.nanmax(cut.outcome_at_N) <= made_at
    assert fitted(whole, made_at=made_at).digest == fitted(cut, made_at=made_at).digest
    rewritten = Outcomes(  # everything after it happens otherwise
        whole.started_at_N,
        np.where(whole.outcome_at_N <= made_at, whole.outcome_at_N, made_at + 1.0),
    )
    assert fitted(rewritten, made_at=made_at).digest == fitted(whole, made_at=made_at).digest
    assert fitted(whole, made_at=made_at + 50).digest != fitted(whole, made_at=made_at).digest


def test_a_cohort_with_few_outcomes_is_refused() -> None:
    few = Outcomes(np.full(99, 3_000.0), np.full(99, 3_001.0))
    refused = fit_delay(few, surface="chat", made_at=5_000, window_s=WINDOW_S, cohort_s=2_000)
    assert isinstance(refused, Refused)
    assert "99 outcomes in a mature cohort of 99 traces, expected at least 100" in refused.reason


def test_many_distinct_delays_are_thinned_without_being_bent() -> None:
    delays = np.random.default_rng(0).uniform(0, 31.0, 20_000) ** 2
    fit = fitted(Outcomes(np.full(delays.size, 3_000.0), 3_000.0 + delays))
    assert len(fit.delays_s) == MAX_KNOTS
    ages = np.linspace(0, 990, 200)
    exact = np.searchsorted(np.sort(delays), ages, side="right") / delays.size
    assert np.abs(fit.shares_at(ages) - exact).max() < 1.5 / MAX_KNOTS


def test_the_rate_to_come_is_right_long_before_it_has_come() -> None:
    errors, hits = [], 0
    for seed in range(40):
        live = stream(seed, n=4_000, until=400.0)
        rate = corrected_rate(fitted(stream(100 + seed)), live, now=400.0)
        assert isinstance(rate, CorrectedRate)
        assert rate.naive < 0.7 * RATE
        errors.append(rate.value - RATE)
        hits += rate.low <= RATE <= rate.high
    assert abs(np.mean(errors)) < 0.005
    assert hits >= 34


def test_traces_too_young_to_say_anything_are_left_out_of_the_rate() -> None:
    fit = by_hand()  # F is 0.05 at the age of 2
    old = Outcomes(np.full(100, 0.0), np.repeat([15.0, np.nan], 50))
    young = Outcomes(np.full(300, 39.0), np.full(300, np.nan))
    both = Outcomes(*(np.concatenate(columns) for columns in zip(old, young, strict=True)))
    rate = corrected_rate(fit, both, now=40.0)
    assert isinstance(rate, CorrectedRate)
    assert (rate.value, rate.naive, rate.num_used) == (0.5, 50 / 400, 100)
    refused = corrected_rate(fit, young, now=40.0)
    assert isinstance(refused, Refused)


def test_an_outcome_after_the_window_is_none() -> None:
    late = Outcomes(np.zeros(100), np.repeat([10.0, WINDOW_S + 1], 50))
    rate = corrected_rate(by_hand(), late, now=5_000.0)
    assert isinstance(rate, CorrectedRate)
    assert rate.value == rate.naive == weighted_rate(by_hand(), late, now=5_000.0) == 0.5


def test_on_cdnow_the_rate_is_within_a_hundredth_where_the_naive_one_is_not() -> None:
    purchases = cdnow()
    january = purchases.first_day_N <= 30
    fit = fit_delay(
        outcomes_of(purchases, january), surface="shop",
        made_at=210 * DAY_S, window_s=180 * DAY_S, cohort_s=31 * DAY_S,
    )  # fmt: skip
    assert isinstance(fit, DelayFit)
    others = outcomes_of(purchases, ~january)
    truth = np.mean(others.outcome_at_N - others.started_at_N <= 180 * DAY_S)
    everyone = outcomes_of(purchases, np.ones_like(january))
    for day, naive in ((90, 0.1751), (60, 0.0972)):
        rate = corrected_rate(fit, others, now=day * DAY_S)
        assert isinstance(rate, CorrectedRate)
        assert rate.value == pytest.approx(truth, abs=0.01)
        assert rate.naive == pytest.approx(naive, abs=1e-4)
    # The figure of anchors 3.2: all customers by January's delays, truth 0.3745.
    assert weighted_rate(fit, everyone, now=90 * DAY_S) == pytest.approx(0.3685, abs=1e-4)


def test_delays_that_changed_raise_an_alarm_and_the_same_ones_do_not() -> None:
    false_alarms = sum(
        delay_drift(fitted(outcomes), outcomes, now=5_000.0).alarm
        for outcomes in map(stream, range(100))
    )
    assert false_alarms == 0
    slow = stream(1, mean_s=400.0)
    changed_N = slow.started_at_N > 4_000
    quick = stream(1)
    changed = Outcomes(
        quick.started_at_N, np.where(changed_N, slow.outcome_at_N, quick.outcome_at_N)
    )
    drift = delay_drift(fitted(changed), changed, now=5_000.0)
    assert drift.alarm
    assert drift.distance > 0.1
    new = refit(
        {"slower": changed, "same": stream(2)}, NO_CORRECTION,
        made_at=5_000.0, window_s=WINDOW_S, cohort_s=2_000.0,
    )  # fmt: skip
    assert new.drifted == ("slower",)


def test_too_few_recent_outcomes_raise_no_alarm() -> None:
    assert delay_drift(by_hand(), Outcomes(np.zeros(0), np.zeros(0)), now=5_000.0).p_value == 1


def test_without_a_fit_nothing_is_corrected() -> None:
    assert NO_CORRECTION.weights_at(age_s=0.0, surface="editor") == 1
    known = DelayWeights(fits=(by_hand(),))
    assert known.weights_at(age_s=10.0, surface="editor") == 4
    assert known.weights_at(age_s=10.0, surface="chat") == 1


def test_the_daily_refit_keeps_a_surfaces_last_fit_when_a_new_one_is_refused() -> None:
    first = refit(
        {"editor": stream(1), "chat": stream(2)}, NO_CORRECTION,
        made_at=5_000.0, window_s=WINDOW_S, cohort_s=2_000.0,
    )  # fmt: skip
    assert [fit.surface for fit in first.weights.fits] == ["chat", "editor"]
    assert (first.refused, first.drifted) == ((), ())
    empty = Outcomes(np.zeros(0), np.zeros(0))
    second = refit(
        {"editor": stream(1, until=6_000.0), "chat": empty}, first.weights,
        made_at=6_000.0, window_s=WINDOW_S, cohort_s=2_000.0,
    )  # fmt: skip
    assert [fit.made_at for fit in second.weights.fits] == [5_000.0, 6_000.0]
    assert [refused.what for refused in second.refused] == ["delays of chat"]
    assert second.weights.digest != first.weights.digest


def test_weights_survive_storage_byte_for_byte() -> None:
    weights = DelayWeights(fits=(by_hand(), fitted(stream(3), surface="chat")))
    assert read_weights(weights.to_bytes()) == weights
    assert read_weights(weights.to_bytes()).digest == weights.digest
    with pytest.raises(ValueError, match="Expected"):
        read_weights(b'{"fits": 3}')


@pytest.mark.slow
def test_the_benchmark_on_real_data_meets_every_target() -> None:
    figures = run()
    assert [figure.metric for figure in figures if figure.ok is False] == []
    assert sum(figure.ok is True for figure in figures) == 11
