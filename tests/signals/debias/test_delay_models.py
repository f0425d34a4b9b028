"""The documented alternatives: each gives its known answer, and each one's weakness shows."""

import numpy as np
import pytest
from scipy import stats

from signals.debias.delay_models import (
    ExponentialDelay,
    esdfm_weights,
    exponential_log_likelihood,
    fit_exponential,
    fnw_probability,
    fnw_weights,
    kaplan_meier_share,
)
from signals.debias.fits import Floats, Refused


def seen(delays: Floats, ages: Floats) -> Floats:
    return np.where(delays <= ages, delays, np.nan)


def test_an_exponential_delay_is_recovered_and_no_other_value_is_likelier() -> None:
    random = np.random.default_rng(0)
    ages = random.uniform(0, 300, 20_000)
    delays = np.where(random.random(20_000) < 0.4, random.exponential(100.0, 20_000), np.inf)
    model = fit_exponential(ages, seen(delays, ages))
    assert isinstance(model, ExponentialDelay)
    assert model.probability == pytest.approx(0.4, abs=0.015)
    assert 1 / model.rate_per_s == pytest.approx(100, rel=0.05)
    best = exponential_log_likelihood(ages, seen(delays, ages), model)
    for p, rate in ((1.02, 1), (0.98, 1), (1, 1.02), (1, 0.98)):
        other = ExponentialDelay(model.probability * p, model.rate_per_s * rate)
        assert exponential_log_likelihood(ages, seen(delays, ages), other) < best


def test_with_everything_waited_for_it_is_the_plain_mean() -> None:
    delays = np.array([1.0, 3.0, np.nan, np.nan])
    model = fit_exponential(np.full(4, 1e6), delays)
    assert isinstance(model, ExponentialDelay)
    assert model == pytest.approx((0.5, 0.5))


def test_heavy_tails_are_read_as_never() -> None:
    random = np.random.default_rng(1)
    ages = random.uniform(0, 300, 20_000)
    delays = np.where(random.random(20_000) < 0.4, 30 * random.lognormal(0, 2.0, 20_000), np.inf)
    model = fit_exponential(ages, seen(delays, ages))
    assert isinstance(model, ExponentialDelay)
    assert model.probability < 0.35  # of 0.4


def test_no_outcome_at_all_gives_no_model() -> None:
    assert isinstance(fit_exponential(np.ones(3), np.full(3, np.nan)), Refused)


def test_kaplan_meier_by_hand() -> None:
    """At 1: 4 at risk, one outcome. At 2: one leaves. At 3: 2 at risk, one outcome."""
    ages = np.array([9.0, 2.0, 9.0, 9.0])
    delays = np.array([1.0, np.nan, 3.0, np.nan])
    assert kaplan_meier_share(ages, delays, 0.5) == 0
    assert kaplan_meier_share(ages, delays, 1) == pytest.approx(1 / 4)
    assert kaplan_meier_share(ages, delays, 2.5) == pytest.approx(1 / 4)
    assert kaplan_meier_share(ages, delays, 3) == pytest.approx(1 - 3 / 4 * 1 / 2)
    assert kaplan_meier_share(ages, delays, 100) == pytest.approx(1 - 3 / 4 * 1 / 2)


def test_fake_negatives_are_weighed_away() -> None:
    """100 traces of which 20 turn: a stream of 100 negatives and 20 positives."""
    p, positive = 0.2, np.repeat([0.0, 1.0], [100, 20])
    assert fnw_probability(positive.mean()) == pytest.approx(p)
    weights = fnw_weights(np.full(120, p), positive)
    assert (weights * positive).sum() / weights.sum() == pytest.approx(p)
    assert weights.sum() == pytest.approx(120)


def test_elapsed_time_sampling_gives_back_the_true_rate() -> None:
    """100 traces, 12 turn within the wait and 8 after it: 88 negatives and 12 + 8 positives."""
    delayed, true_negative = 0.08, 80 / 88
    positive = np.repeat([0.0, 1.0], [88, 20])
    weights = esdfm_weights(np.full(108, delayed), np.full(108, true_negative), positive)
    assert (weights * positive).sum() / weights.sum() == pytest.approx(0.2)


def test_without_late_outcomes_elapsed_time_sampling_weighs_nothing() -> None:
    assert esdfm_weights(np.zeros(2), np.ones(2), np.array([0.0, 1.0])).tolist() == [1, 1]


def test_an_inverse_delay_rate_agrees_with_kaplan_meier_where_both_can_see() -> None:
    random = np.random.default_rng(2)
    ages = np.full(50_000, 400.0) - random.uniform(0, 300, 50_000)
    delays = np.where(random.random(50_000) < 0.4, random.exponential(60.0, 50_000), np.inf)
    truth = 0.4 * stats.expon(scale=60).cdf(350)
    assert kaplan_meier_share(ages, seen(delays, ages), 350) == pytest.approx(truth, abs=0.01)
