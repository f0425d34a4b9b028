"""Ratings of the few who rate, made to speak for all: planted truth recovered, no user leaked."""

import msgspec
import numpy as np
import pytest

from signals.debias.covariates import Covariates, fit_design
from signals.debias.fits import Bools, Floats, Refused
from signals.debias.raters import RatedMean, RatingModel, cross_fitted, fit_raters, mean_over_all

TRUTH = 0.0
MEAN_LOG_WAIT = 0.80605918  # of log(1 + x) where log(x) is standard normal, by quadrature


def planted(seed: int, *, n: int = 6_000) -> tuple[Covariates, Floats, Bools, Floats]:
    """Ratings of mean `TRUTH`; who waited long is both angrier and more eager to rate."""
    random = np.random.default_rng(seed)
    users = random.integers(0, n // 4, n).astype(float)
    latency_s = random.lognormal(0.0, 1.0, n)
    language = random.choice(["python", "go", "rust"], n, p=[0.6, 0.3, 0.1])
    anger = np.log1p(latency_s) - MEAN_LOG_WAIT
    ratings = -0.5 * anger + 0.3 * random.standard_normal(n)
    rated = random.random(n) < 1 / (1 + np.exp(1.5 - 1.5 * anger - 0.5 * (language == "go")))
    return Covariates({"latency_s": latency_s}, {"language": language}), ratings, rated, users


def corrected(seed: int) -> RatedMean:
    covariates, ratings, rated, users = planted(seed)
    probabilities = cross_fitted(covariates, rated, users, made_at=0.0)
    assert not isinstance(probabilities, Refused)
    mean = mean_over_all(ratings, rated, probabilities, users)
    assert isinstance(mean, RatedMean)
    return mean


def test_the_mean_over_all_is_recovered_where_that_of_the_raters_is_off() -> None:
    means = [corrected(seed) for seed in range(20)]
    assert np.mean([mean.naive for mean in means]) < -0.1
    assert abs(np.mean([mean.value for mean in means]) - TRUTH) < 0.01
    assert sum(mean.low <= TRUTH <= mean.high for mean in means) >= 17


def test_ratings_that_were_not_given_are_never_read() -> None:
    _, ratings, rated, users = planted(1)
    hidden = np.where(rated, ratings, np.nan)
    probabilities = np.full(rated.size, 0.3)
    assert mean_over_all(hidden, rated, probabilities, users) == mean_over_all(
        ratings, rated, probabilities, users
    )


def test_no_users_own_rows_move_his_probability() -> None:
    covariates, _, rated, users = planted(5)
    mine = users == users[0]
    before = cross_fitted(covariates, rated, users, made_at=0.0)
    after = cross_fitted(covariates, rated ^ mine, users, made_at=0.0)
    assert not isinstance(before, Refused)
    assert not isinstance(after, Refused)
    assert np.array_equal(before[mine], after[mine])
    assert not np.array_equal(before, after)


def test_with_equal_probabilities_the_mean_is_the_raters_own() -> None:
    _, ratings, rated, users = planted(2)
    mean = mean_over_all(ratings, rated, np.full(rated.size, 0.4), users)
    assert isinstance(mean, RatedMean)
    assert mean.value == pytest.approx(mean.naive)
    assert mean.effective_ratings == pytest.approx(rated.sum())


def test_a_model_names_what_it_learned_and_survives_storage() -> None:
    covariates, _, rated, _ = planted(3)
    model = fit_raters(covariates, rated, made_at=7.0)
    assert isinstance(model, RatingModel)
    stored = msgspec.json.decode(msgspec.json.encode(model), type=RatingModel)
    assert stored == model
    assert stored.digest == model.digest
    assert np.array_equal(stored.probabilities(covariates), model.probabilities(covariates))
    assert model.coefficients[0] > 0.5  # those who waited rate more


def test_too_few_raters_are_refused() -> None:
    covariates, ratings, rated, users = planted(4)
    few = rated & (np.cumsum(rated) <= 10)
    for refused in (
        fit_raters(covariates, few, made_at=0.0),
        cross_fitted(covariates, few, users, made_at=0.0),
        mean_over_all(ratings, few, np.full(few.size, 0.1), users),
    ):
        assert isinstance(refused, Refused)
        assert "expected" in refused.reason


def test_a_rare_or_new_language_counts_as_other() -> None:
    language = np.array(["python"] * 150 + ["go"] * 60 + ["ada"])
    design = fit_design(Covariates({}, {"language": language}))
    assert [(c.base, c.levels) for c in design.categories] == [("python", ("go",))]
    new = Covariates({}, {"language": np.array(["python", "go", "ada", "zig"])})
    assert design.columns(new).tolist() == [[0, 0], [1, 0], [0, 1], [0, 1]]


def test_amounts_enter_as_standardised_logarithms_and_never_negative() -> None:
    amounts = np.array([0.0, 1.0, 3.0])
    columns = fit_design(Covariates({"s": amounts}, {})).columns(Covariates({"s": amounts}, {}))
    logs = np.log1p(amounts)
    assert columns[:, 0] == pytest.approx((logs - logs.mean()) / logs.std())
    with pytest.raises(ValueError, match="no negative amount"):
        fit_design(Covariates({"s": np.array([-1.0])}, {}))
