"""Off-policy estimates: by hand, against simulated truth, against obp's own code, and refused."""

import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.datasets import open_bandit
from benchmarks.delay import NO_FLOOR, uniform_from
from signals.debias.fits import Refused
from signals.debias.off_policy import (
    Estimate,
    Modelled,
    clipped,
    doubly_robust,
    ips,
    snips,
    switch,
)
from signals.debias.overlap import LoggedBatch, Rules, effective_rows, overlap_of, weights_of
from signals.debias.reward_model import action_means, folds_by_user
from tests.data import wheel

ANY = Rules(
    min_effective_share=0, min_effective=0, propensity_floor=0, max_weight_error_se=1e9, min_users=0
)
# Weights 2, 2, 0.5, 4: sum 8.5; rewards 1, 0, 1, 0.
FOUR = LoggedBatch(
    rewards_N=np.array([1.0, 0.0, 1.0, 0.0]),
    logged_N=np.array([0.5, 0.25, 0.8, 0.1]),
    target_N=np.array([1.0, 0.5, 0.4, 0.4]),
)
MODEL = Modelled(np.array([0.5, 0.5, 1.0, 0.25]), np.array([0.4, 0.4, 0.4, 0.4]))
TRUE_RATES = np.array([0.1, 0.3, 0.6])
LOGGED = np.array([0.6, 0.3, 0.1])
TARGET = np.array([0.2, 0.2, 0.6])
TRUTH = float(TARGET @ TRUE_RATES)


def value(estimate: Estimate | Refused) -> float:
    assert isinstance(estimate, Estimate), estimate
    return estimate.value


def simulated(seed: int, *, n: int = 3_000) -> tuple[LoggedBatch, Modelled]:
    """Three actions; the model is right about the first, wrong about the others."""
    random = np.random.default_rng(seed)
    actions = random.choice(3, n, p=LOGGED)
    rewards = (random.random(n) < TRUE_RATES[actions]).astype(float)
    wrong = np.array([0.1, 0.5, 0.4])
    modelled = Modelled(wrong[actions], np.full(n, TARGET @ wrong))
    return LoggedBatch(rewards, LOGGED[actions], TARGET[actions]), modelled


def test_each_estimator_gives_the_number_worked_by_hand() -> None:
    assert value(ips(FOUR, rules=ANY)) == pytest.approx((2 + 0.5) / 4)
    assert value(snips(FOUR, rules=ANY)) == pytest.approx(2.5 / 8.5)
    assert value(clipped(FOUR, clip=1.0, rules=ANY)) == pytest.approx(1.5 / 3.5)
    # 0.4 + mean of 2 (1 - .5), 2 (0 - .5), .5 (1 - 1), 4 (0 - .25)
    assert value(doubly_robust(FOUR, MODEL, rules=ANY)) == pytest.approx(0.4 + (1 - 1 + 0 - 1) / 4)
    assert value(switch(FOUR, MODEL, max_weight=3, rules=ANY)) == pytest.approx(0.4 + (1 - 1) / 4)


def test_what_the_clip_cut_off_is_told() -> None:
    cut = clipped(FOUR, clip=1.0, rules=ANY)
    left = switch(FOUR, MODEL, max_weight=3, rules=ANY)
    assert isinstance(cut, Estimate)
    assert isinstance(left, Estimate)
    assert cut.cut_share == pytest.approx(1 - 3.5 / 8.5)
    assert left.cut_share == pytest.approx(4 / 8.5)


def test_the_policy_that_logged_is_worth_its_mean() -> None:
    same = LoggedBatch(FOUR.rewards_N, FOUR.logged_N, FOUR.logged_N)
    for estimator in (ips, snips, clipped):
        assert value(estimator(same, rules=ANY)) == 0.5


def test_a_reward_that_never_varies_leaves_self_normalised_estimates_no_doubt() -> None:
    sure = simulated(4)[0]._replace(rewards_N=np.ones(3_000))
    for estimate in (snips(sure), clipped(sure, clip=2.0)):
        assert isinstance(estimate, Estimate)
        assert (estimate.low, estimate.high) == pytest.approx((1.0, 1.0))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    num_runs = 150
    hits = dict.fromkeys(("ips", "snips", "doubly_robust"), 0)
    for seed in range(num_runs):
        batch, modelled = simulated(seed)
        for estimate in (ips(batch), snips(batch), doubly_robust(batch, modelled)):
            assert isinstance(estimate, Estimate)
            hits[estimate.method] += estimate.low <= TRUTH <= estimate.high
    for method, count in hits.items():  # 4.5 standard deviations around 95 % of 150
        assert 130 <= count <= 150, method


def test_a_right_model_narrows_the_interval_and_a_wrong_one_does_not_shift_it() -> None:
    batch, wrong = simulated(1, n=50_000)
    right = Modelled(
        np.array([TRUE_RATES[np.flatnonzero(p == LOGGED)[0]] for p in batch.logged_N]),
        np.full(batch.rewards_N.size, TRUTH),
    )
    plain, with_right, with_wrong = (
        ips(batch), doubly_robust(batch, right), doubly_robust(batch, wrong)
    )  # fmt: skip
    assert isinstance(plain, Estimate)
    assert isinstance(with_right, Estimate)
    assert with_right.high - with_right.low < plain.high - plain.low
    assert value(with_wrong) == pytest.approx(TRUTH, abs=0.02)
    assert value(switch(batch, wrong, max_weight=3)) != pytest.approx(TRUTH, abs=0.02)


def test_copies_of_a_users_rows_do_not_make_the_interval_narrower() -> None:
    batch, _ = simulated(2, n=1_000)
    ten = LoggedBatch(*(np.repeat(column, 10) for column in batch[:3]))
    ten = ten._replace(users_N=np.repeat(range(1_000), 10))
    once, by_user, by_row = snips(batch), snips(ten), snips(ten._replace(users_N=None))
    assert isinstance(once, Estimate)
    assert isinstance(by_user, Estimate)
    assert isinstance(by_row, Estimate)
    assert by_user.high == pytest.approx(once.high)
    assert by_row.high - by_row.value < 0.4 * (once.high - once.value)


def test_effective_rows_are_all_for_equal_weights_and_one_for_a_single_one() -> None:
    assert effective_rows(np.full(7, 3.0)) == pytest.approx(7)
    assert effective_rows(np.array([0.0, 5.0, 0.0])) == pytest.approx(1)
    assert effective_rows(np.array([1.0, 3.0])) == pytest.approx(16 / 10)
    assert effective_rows(np.zeros(3)) == 0


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (LoggedBatch(*(column[:150] for column in simulated(3)[0][:3])), "effective sample size"),
        (simulated(3)[0]._replace(logged_N=np.full(3_000, 0.005)), "below the floor"),
        (LoggedBatch(np.ones(1_000), np.full(1_000, 0.009), np.full(1_000, 0.009)), "floor 0.01"),
        (LoggedBatch(np.ones(1_000), np.full(1_000, 0.5), np.full(1_000, 0.25)), "average 0.5"),
        (LoggedBatch(*(np.ones(1_000),) * 3, np.repeat(range(10), 100)), "10 users"),
        (LoggedBatch(np.zeros(0), np.zeros(0), np.zeros(0)), "0 rows"),
    ],
)
def test_a_batch_that_cannot_tell_is_refused_with_numbers(batch: LoggedBatch, reason: str) -> None:
    for estimator in (ips, snips, clipped):
        refused = estimator(batch)
        assert isinstance(refused, Refused)
        assert reason in refused.reason


@pytest.mark.parametrize(
    "wrong",
    [
        {"logged_N": np.array([0.0, 0.5, 0.5, 0.5])},
        {"logged_N": np.array([1.1, 0.5, 0.5, 0.5])},
        {"target_N": np.array([-0.1, 0.5, 0.5, 0.5])},
        {"rewards_N": np.array([np.nan, 0, 0, 0])},
        {"rewards_N": np.zeros(3)},
    ],
)
def test_what_is_no_probability_or_reward_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        ips(FOUR._replace(**wrong), rules=ANY)


def test_on_open_bandit_the_case_of_two_effective_rows_is_refused_and_the_sound_one_is_not() -> (
    None
):
    women, men = (uniform_from(open_bandit("bts", name)) for name in ("women", "men"))
    overlap = overlap_of(weights_of(women))
    assert overlap.effective_rows == pytest.approx(2.08, abs=0.01)
    assert overlap.max_weight == pytest.approx(21_739, abs=1)
    for estimator in (ips, snips, clipped):
        refused = estimator(women, rules=NO_FLOOR)
        assert isinstance(refused, Refused)
        assert "effective sample size 2.078 of 10000" in refused.reason
    # 340 rows are above the least number, but below the least share.
    refused = snips(uniform_from(open_bandit("bts", "all")), rules=NO_FLOOR)
    assert isinstance(refused, Refused)
    assert "340.4 of 10000 rows, expected at least 500" in refused.reason
    estimate = snips(men, rules=NO_FLOOR)
    truth = open_bandit("random", "men").clicked_N.mean()
    assert isinstance(estimate, Estimate)
    assert estimate.low <= truth <= estimate.high


def test_a_log_below_the_floor_of_the_server_is_refused_even_where_it_overlaps() -> None:
    refused = snips(uniform_from(open_bandit("bts", "men")))
    assert isinstance(refused, Refused)
    assert "below the floor 0.01" in refused.reason


def test_estimates_equal_those_of_obps_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_bandit("bts", "men")
    batch = uniform_from(log)
    n, k = batch.rewards_N.size, log.num_items
    target_A = np.full(k, 1 / k)
    modelled = action_means(batch.rewards_N, log.items_N, target_A, folds_by_user(np.arange(n)))
    # obp wants q of all actions; only that of the action taken and their mean matter.
    q_NA = np.repeat(modelled.target_policy_N[:, None], k, axis=1)
    q_NA += ((modelled.target_policy_N - modelled.logged_action_N) / (k - 1))[:, None]
    q_NA[np.arange(n), log.items_N] = modelled.logged_action_N
    feedback = {
        "reward": batch.rewards_N,
        "action": log.items_N,
        "pscore": log.propensities_N,
        "action_dist": np.full((n, k, 1), 1 / k),
        "position": np.zeros(n, dtype=int),
        "estimated_rewards_by_reg_model": q_NA[:, :, None],
    }
    obp = obp_estimators(monkeypatch)
    for theirs, ours in (
        (obp.InverseProbabilityWeighting(), ips(batch, rules=NO_FLOOR)),
        (obp.SelfNormalizedInverseProbabilityWeighting(), snips(batch, rules=NO_FLOOR)),
        (obp.DoublyRobust(), doubly_robust(batch, modelled, rules=NO_FLOOR)),
        (obp.SwitchDoublyRobust(tau=10), switch(batch, modelled, rules=NO_FLOOR)),
    ):
        assert value(ours) == pytest.approx(theirs.estimate_policy_value(**feedback), rel=1e-9)


def obp_estimators(monkeypatch: pytest.MonkeyPatch) -> Any:
    """obp's estimator module out of its wheel, without the plotting that its packages import."""
    with wheel("obp") as archive:
        assert archive.filename
        root = archive.filename
    for name in ("pandas", "obp", "obp.ope"):
        module = ModuleType(name)
        module.__path__ = [f"{root}/{name.replace('.', '/')}"]
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("obp.utils", "obp.ope.estimators"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys.modules["obp"], "utils", importlib.import_module("obp.utils"), False)
    return importlib.import_module("obp.ope.estimators")


def test_a_reward_model_never_sees_the_row_it_predicts() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    actions = np.zeros(4, dtype=np.int64)
    modelled = action_means(rewards, actions, np.array([1.0]), np.array([0, 1, 2, 3]))
    assert modelled.logged_action_N[0] == 0
    assert modelled.logged_action_N[1] == pytest.approx(1 / 3)


def test_folds_never_split_a_user() -> None:
    users = np.array(["a", "b", "a", "c", "b", "d", "e", "f"])
    folds = folds_by_user(users)
    assert folds[0] == folds[2]
    assert folds[1] == folds[4]
    assert sorted(np.bincount(folds_by_user(np.arange(100)))) == [20] * 5
