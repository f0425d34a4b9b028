"""Leniency and scales: planted kindness taken out, equal meaning equal reward."""

import msgspec
import numpy as np
import pytest

from benchmarks.datasets import chitchat
from signals.debias.covariates import Covariates
from signals.debias.fits import Floats, Refused
from signals.debias.leniency import LeniencyFit, fit_leniency
from signals.debias.scales import UnknownScale, to_unit, to_units


def planted(seed: int) -> tuple[Floats, Floats, Covariates, Floats]:
    """300 users of spread 0.5, 1 to 30 ratings each; a second of waiting costs more, the kinder."""
    random = np.random.default_rng(seed)
    kindness = random.normal(0.0, 0.5, 300)
    users = np.repeat(np.arange(300), random.integers(1, 31, 300))
    latency_s = random.lognormal(kindness[users], 0.5)  # kind users have slow machines
    ratings = kindness[users] - 0.4 * np.log1p(latency_s) + random.normal(0, 0.3, users.size)
    return ratings, users.astype(float), Covariates({"latency_s": latency_s}, {}), kindness


def fitted(ratings: Floats, users: Floats, covariates: Covariates | None = None) -> LeniencyFit:
    fit = fit_leniency(ratings, users, covariates, made_at=3.0)
    assert isinstance(fit, LeniencyFit), fit
    return fit


def test_planted_variances_slopes_and_users_are_recovered() -> None:
    ratings, users, covariates, kindness = planted(0)
    fit = fitted(ratings, users, covariates)
    assert fit.within == pytest.approx(0.09, rel=0.1)
    assert fit.between == pytest.approx(0.25, rel=0.25)
    spread = np.log1p(covariates.amounts["latency_s"]).std()
    assert fit.slopes[0] / spread == pytest.approx(-0.4, abs=0.03)
    found = np.array([fit.intercepts[str(float(user))] for user in range(300)])
    assert np.corrcoef(found, kindness)[0, 1] > 0.9


def test_a_slope_between_users_does_not_pass_for_one_within() -> None:
    """Across all rows slow goes with kind here, and plain regression calls waiting harmless."""
    ratings, users, covariates, _ = planted(1)
    logs = np.log1p(covariates.amounts["latency_s"])
    assert np.polyfit(logs, ratings, 1)[0] > 0.2
    assert fitted(ratings, users, covariates).slopes[0] < 0


def test_adjusted_ratings_no_longer_tell_the_user() -> None:
    ratings, users, covariates, kindness = planted(2)
    adjusted = fitted(ratings, users, covariates).adjusted(ratings, users, covariates)
    own = kindness[users.astype(int)]
    assert abs(np.corrcoef(own, adjusted)[0, 1]) < 0.2 < np.corrcoef(own, ratings)[0, 1]
    assert adjusted.mean() == pytest.approx(ratings.mean(), abs=0.1)


def test_a_user_of_one_rating_is_believed_less_than_one_of_many() -> None:
    ratings, users, _, _ = planted(3)
    one, many = 1_000.0, 1_001.0
    fit = fitted(
        np.concatenate([ratings, [2.0], np.full(30, 2.0)]),
        np.concatenate([users, [one], np.full(30, many)]),
    )
    shift = 2.0 - fit.mean
    assert fit.intercepts[str(one)] / shift == pytest.approx(
        fit.between / (fit.between + fit.within)
    )
    assert fit.intercepts[str(many)] / shift == pytest.approx(
        fit.between / (fit.between + fit.within / 30)
    )
    assert fit.adjusted(np.array([1.0]), np.array(["stranger"])).tolist() == [1.0]


def test_users_who_do_not_differ_get_no_intercept() -> None:
    random = np.random.default_rng(0)
    fit = fitted(random.normal(0, 1, 5_000), np.repeat(np.arange(500.0), 10))
    assert fit.between < 0.02
    assert max(map(abs, fit.intercepts.values())) < 0.2


def test_one_rating_each_tells_no_leniency() -> None:
    refused = fit_leniency(np.zeros(100), np.arange(100.0), made_at=0.0)
    assert isinstance(refused, Refused)
    assert "0 of them with several" in refused.reason


def test_a_fit_survives_storage_with_its_name() -> None:
    fit = fitted(*planted(4)[:3])
    stored = msgspec.json.decode(msgspec.json.encode(fit), type=LeniencyFit)
    assert (stored, stored.digest) == (fit, fit.digest)


@pytest.mark.parametrize(("meaning", "five", "ten"), [(-1, 1, 1), (0, 3, 5.5), (1, 5, 10)])
def test_equal_meaning_on_two_scales_is_equal(meaning: float, five: float, ten: float) -> None:
    assert to_unit(five, 1, 5) == to_unit(ten, 1, 10) == meaning


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [(3, None, 5), (3, 1, None), (3, 5, 1), (3, 3, 3), (6, 1, 5), (0, 1, 5), (3, 1, float("inf")),
     (float("nan"), 1, 5)],
)  # fmt: skip
def test_a_rating_without_a_meaning_is_refused(
    value: float, low: float | None, high: float | None
) -> None:
    with pytest.raises(UnknownScale):
        to_unit(value, low, high)
    numbers = [np.array([np.nan if x is None else x], dtype=float) for x in (value, low, high)]
    assert np.isnan(to_units(*numbers)).all()


def test_columns_give_what_single_ratings_give() -> None:
    values, low, high = np.array([1.0, 4.0, 7.0]), np.ones(3), np.array([5.0, 5.0, 10.0])
    assert to_units(values, low, high).tolist() == [
        to_unit(v, a, b) for v, a, b in zip(values, low, high, strict=True)
    ]


def test_real_ratings_of_no_named_scale_are_all_unknown_and_guessing_would_flip_some() -> None:
    _, ratings = chitchat()
    values = np.array([r.witty for r in ratings], dtype=float)
    unknown = np.full(values.size, np.nan)
    assert np.isnan(to_units(values, unknown, unknown)).all()
    assert values.max() == 10
    assert to_unit(5, 1, 5) == 1
    assert to_unit(5, 1, 10) < 0  # 5 is the best of one scale and below the middle of the other
