"""Position factors: from randomised order only, on real clicks with a planted bias."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.datasets import open_bandit
from signals.debias.fits import Bools, Ints, Refused
from signals.debias.position import ExaminationFit, fit_examination, share_bounds


def fitted(positions: Ints, clicked: Bools, randomised: Bools | None = None) -> ExaminationFit:
    randomised = np.ones(positions.size, dtype=bool) if randomised is None else randomised
    fit = fit_examination(positions, clicked, randomised, surface="list", made_at=5.0)
    assert isinstance(fit, ExaminationFit), fit
    return fit


def planted(seed: int, *, factors: tuple[float, ...], n: int = 20_000) -> tuple[Ints, Bools]:
    random = np.random.default_rng(seed)
    positions = random.integers(1, len(factors) + 1, n)
    good = random.random(n) < 0.2
    looked = random.random(n) < np.array(factors)[positions - 1]
    return positions, good & looked


def test_the_factor_is_the_ratio_of_click_rates() -> None:
    positions = np.array([1] * 100 + [2] * 200)
    clicked = np.array([True] * 20 + [False] * 80 + [True] * 10 + [False] * 190)
    second = fitted(positions, clicked).factors[1]
    assert second.factor == pytest.approx((10 / 200) / (20 / 100))
    assert second.low < second.factor < second.high


def test_planted_factors_are_recovered_within_their_intervals() -> None:
    factors = (1.0, 0.6, 0.3)
    hits = 0
    for seed in range(40):
        fit = fitted(*planted(seed, factors=factors))
        hits += all(f.low <= factors[f.position - 1] <= f.high for f in fit.factors)
        assert fit.factors[2].high < 0.6  # and they say something
    assert hits >= 38


def test_on_open_bandit_equal_positions_are_found_equal_and_a_strong_bias_is_not() -> None:
    logs = [open_bandit("random", name) for name in ("all", "men", "women")]
    clicked = np.concatenate([log.clicked_N for log in logs])
    random = np.random.default_rng(0)
    equal = random.permutation(np.concatenate([log.positions_N for log in logs]))
    assert all(f.low <= 1 <= f.high for f in fitted(equal, clicked).factors)
    seen = (equal != 3) | (random.random(equal.size) < 0.25)
    third = fitted(equal, clicked & seen).factors[2]
    assert third.low <= 0.25 <= third.high < 1


def test_rows_whose_order_was_chosen_are_left_out() -> None:
    positions, clicked = planted(1, factors=(1.0, 0.5))
    chosen = np.arange(positions.size) % 2 == 0
    misleading = clicked | (chosen & (positions == 2))
    fit = fitted(positions, misleading, ~chosen)
    assert fit == fitted(positions[~chosen], clicked[~chosen])


@pytest.mark.parametrize(
    ("clicked", "randomised", "reason"),
    [(True, False, "no row whose order"), (False, True, "0 clicks at position 1")],
)
def test_without_random_order_or_clicks_there_is_no_factor(
    clicked: bool, randomised: bool, reason: str
) -> None:
    positions = np.array([1, 2] * 50)
    refused = fit_examination(
        positions, np.full(100, clicked), np.full(100, randomised), surface="list", made_at=0.0
    )
    assert isinstance(refused, Refused)
    assert reason in refused.reason


def test_weighted_clicks_are_equal_where_the_content_is() -> None:
    positions, clicked = planted(2, factors=(1.0, 0.4), n=100_000)
    weights = fitted(positions, clicked).weights(positions)
    first, second = ((clicked * weights)[positions == k].mean() for k in (1, 2))
    assert first == pytest.approx(second, rel=1e-9)
    assert clicked[positions == 2].mean() < 0.5 * clicked[positions == 1].mean()


def test_a_share_stays_within_its_bounds_at_every_look() -> None:
    """A fixed 95 % interval is missed by far more than 5 % of runs when it is looked at daily."""
    random = np.random.default_rng(0)
    missed = missed_fixed = 0
    for _ in range(100):
        hits = np.cumsum(random.random(400) < 0.3)
        looks = [(int(hits[n - 1]), n) for n in range(10, 401, 10)]
        missed += any(not low <= 0.3 <= high for low, high in (share_bounds(*x) for x in looks))
        fixed = (stats.beta.ppf((0.025, 0.975), (h, h + 1), (n - h + 1, n - h)) for h, n in looks)
        missed_fixed += any(not low <= 0.3 <= high for low, high in fixed)
    assert missed <= 5 < missed_fixed


def test_bounds_of_none_and_all_are_one_sided() -> None:
    assert share_bounds(0, 10)[0] == 0
    assert share_bounds(10, 10)[1] == 1
    low, high = share_bounds(0, 10)
    assert high == pytest.approx(1 - (0.05 / 11) ** 0.1)  # B(1, 11) = 1/11 over (1-p)^10 at 1/0.05
    assert share_bounds(10, 10) == pytest.approx((1 - high, 1 - low))


def test_equal_fits_have_equal_names_and_different_ones_do_not() -> None:
    positions, clicked = planted(3, factors=(1.0, 0.5))
    assert fitted(positions, clicked).digest == fitted(positions, clicked).digest
    assert fitted(positions, clicked).digest != fitted(positions, ~clicked).digest
