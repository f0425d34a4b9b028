"""Caps: one loud user, one flood, many sybils; the stream keeps the limits of the batch."""

import sqlite3

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from signals.trust.cap_state import Arrival, CapState
from signals.trust.caps import capped, influence_bound, mass_capped, share_capped
from tendril.settings import TrustSettings

OLD_S = 400 * 86_400.0
HOUR_S = 3_600.0
OLD_ACCOUNTS = TrustSettings(new_account_s=0, probation_s=0)
"""Every account counts at once: with an age to reach, all weights of a new stream are 0."""


def _weighted_mean(values, weights) -> float:
    return float(np.average(values, weights=weights))


def test_twenty_events_of_one_user_weigh_as_much_as_two_hundred():
    for num in (20, 200):
        weights = mass_capped(np.array(["u"] * num), np.ones(num), 20.0)
        assert abs(weights.sum() - 20.0) < 1e-9


@settings(max_examples=50)
@given(st.lists(st.integers(1, 500), min_size=3, max_size=30), st.floats(0.05, 0.5))
def test_no_name_has_more_than_its_share_of_what_is_left(masses: list[int], share: float):
    names = np.repeat([f"n{i}" for i in range(len(masses))], masses)
    weights = share_capped(names, np.ones(len(names)), share)
    total = weights.sum()
    limit = min(1.0, max(share, 2.0 / len(masses)))
    for name in set(names):
        assert weights[names == name].sum() <= limit * total * (1 + 1e-6)
    assert np.all(weights <= 1 + 1e-12)


def test_a_hostile_heavy_user_moves_the_mean_by_at_most_half_a_percent():
    users = np.array([f"u{i % 400}" for i in range(4_000)] + ["loud"] * 3_000)
    values = np.array([0.3] * 4_000 + [1.0] * 3_000)
    tenants = np.array(["acme"] * len(users))
    found = capped(users, tenants, np.full(len(users), OLD_S), TrustSettings())
    assert _weighted_mean(values, np.ones(len(users))) > 0.5
    assert abs(_weighted_mean(values, found.weights_N) - 0.3) <= 0.005


def test_new_accounts_count_for_nothing_and_young_ones_share_two_percent():
    users = np.array([f"u{i % 300}" for i in range(3_000)] + [f"sybil{i}" for i in range(600)])
    values = np.array([0.3] * 3_000 + [1.0] * 600)
    tenants = np.array(["acme"] * len(users))
    for age_s, bound in ((86_400.0, 0.0), (10 * 86_400.0, influence_bound(0.02, 0.3))):
        ages = np.array([OLD_S] * 3_000 + [age_s] * 600)
        found = capped(users, tenants, ages, TrustSettings())
        moved = _weighted_mean(values, found.weights_N) - 0.3
        assert -1e-9 <= moved <= bound + 1e-9


def test_aged_sybils_are_not_stopped_by_caps():
    """The limit that the specification asks not to hide."""
    users = np.array([f"u{i % 300}" for i in range(3_000)] + [f"s{i % 100}" for i in range(2_000)])
    values = np.array([0.3] * 3_000 + [1.0] * 2_000)
    tenants = np.array(["acme"] * len(users))
    found = capped(users, tenants, np.full(len(users), OLD_S), TrustSettings())
    assert _weighted_mean(values, found.weights_N) > 0.4


def _weights(arrivals: list[Arrival], sizes: list[int]) -> list[float]:
    state = CapState(sqlite3.connect(":memory:"), OLD_ACCOUNTS)
    weights, start = [], 0
    for size in [*sizes, len(arrivals)]:
        weights += [w.weight for w in state.weigh(arrivals[start : start + size])]
        start += size
    return weights


@settings(max_examples=30)
@given(
    users=st.lists(st.sampled_from("abcde"), min_size=1, max_size=80),
    sizes=st.lists(st.integers(1, 9), max_size=10),
)
def test_a_stream_decides_the_same_whatever_the_batches(users: list[str], sizes: list[int]):
    arrivals = [Arrival("acme", user, 1e9 + 200.0 * i) for i, user in enumerate(users)]
    whole = _weights(arrivals, [])
    assert _weights(arrivals, sizes) == whole
    assert whole[0] == 1.0


def test_in_a_stream_a_users_twenty_first_trace_of_an_hour_counts_nothing():
    state = CapState(sqlite3.connect(":memory:"), OLD_ACCOUNTS)
    start = HOUR_S * 1_000
    found = state.weigh([Arrival("acme", "loud", start + i) for i in range(25)])
    assert [w.weight for w in found] == [1.0] * 20 + [0.0] * 5
    assert found[-1].reason == "user_events"


def test_an_account_that_is_forgotten_leaves_no_row():
    db = sqlite3.connect(":memory:")
    state = CapState(db, OLD_ACCOUNTS)
    state.weigh([Arrival("acme", "ada", 1e9), Arrival("acme", "bob", 1e9)])
    assert state.forget_account("acme", "ada") >= 1
    text = "".join(str(row) for table in ("trust_accounts", "trust_used")
                   for row in db.execute(f"SELECT * FROM {table}"))  # fmt: skip
    assert "ada" not in text
    assert "bob" in text
