"""Where requests go: sticky shares, an order that moves few, and a bound on load."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.replicas import Group, Replica
from serving.gateway.routing import (
    Assignment,
    assign,
    attempts_for,
    by_load_and_preference,
    by_preference,
    uniform,
)

NUM_USERS = 10_000


def make_replicas(num: int, group: Group = "live", **fields: int) -> list[Replica]:
    return [Replica(f"http://{group}-{i}", group, ready=True, **fields) for i in range(num)]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_the_canary_gets_its_share_of_users(share: float) -> None:
    arms = [
        assign(uniform("acme", "user", str(user)), share, live=True, canary=True).group
        for user in range(NUM_USERS)
    ]
    deviation = (share * (1 - share) * NUM_USERS) ** 0.5
    assert abs(arms.count("canary") - share * NUM_USERS) < 4 * deviation


def test_a_user_stays_and_a_growing_share_only_adds_users() -> None:
    units = [uniform("acme", "user", str(user)) for user in range(2_000)]
    assert units == [uniform("acme", "user", str(user)) for user in range(2_000)]
    few, many = (
        {i for i, u in enumerate(units) if assign(u, share, live=True, canary=True)[0] == "canary"}
        for share in (0.05, 0.2)
    )
    assert few < many


@pytest.mark.parametrize(
    ("unit", "live", "canary", "expected"),
    [
        (0.1, True, True, Assignment("canary", 0.25)),
        (0.25, True, True, Assignment("live", 0.75)),
        (0.1, True, False, Assignment("live", 1.0)),
        (0.9, False, True, Assignment("canary", 1.0)),
        (0.1, False, False, Assignment("live", 1.0)),
    ],
)
def test_an_arm_comes_with_the_probability_it_was_chosen_with(
    unit: float, live: bool, canary: bool, expected: Assignment
) -> None:
    assert assign(unit, 0.25, live=live, canary=canary) == expected


def test_no_share_means_no_canary() -> None:
    assert assign(0.0, 0.0, live=True, canary=True) == Assignment("live", 1.0)


def test_a_replica_that_goes_moves_only_its_own_sessions() -> None:
    replicas = make_replicas(4)
    before = {s: by_preference(replicas, str(s))[0] for s in range(400)}
    after = {s: by_preference(replicas[:3], str(s))[0] for s in range(400)}
    assert all(before[s] is after[s] for s in before if before[s] is not replicas[3])
    shares = Counter(replica.url for replica in before.values())
    assert min(shares.values()) > 60  # of 100 expected; 4.6 standard deviations


def test_a_session_leaves_its_replica_only_when_that_is_clearly_busier() -> None:
    replicas = make_replicas(3, reported=8)
    preferred = by_preference(replicas, "s")
    preferred[0].reported = 14  # 1.25 x 8 + 4
    assert by_load_and_preference(replicas, "s") == preferred
    preferred[0].reported = 15
    assert by_load_and_preference(replicas, "s") == [*preferred[1:], preferred[0]]


def test_load_counts_what_was_sent_since_the_last_look() -> None:
    replica = Replica("http://a", "live", reported=10, running_when_reported=4, running=6)
    assert replica.load == 12
    replica.running = 0
    assert replica.load == 6


def test_the_other_group_is_the_last_resort_and_says_so() -> None:
    live, canary = make_replicas(2), make_replicas(1, "canary")
    attempts = attempts_for(live, canary, unit=0.1, canary_share=0.25, affinity="s")
    assert [(a.replica.group, a.assignment) for a in attempts] == [
        ("canary", Assignment("canary", 0.25)),
        ("live", Assignment("live", 1.0)),
        ("live", Assignment("live", 1.0)),
    ]
    assert attempts_for([], [], unit=0.1, canary_share=0.25, affinity="s") == []


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.text())
def test_every_replica_is_tried_once_whatever_the_load(loads: list[int], affinity: str) -> None:
    replicas = make_replicas(len(loads))
    for replica, load in zip(replicas, loads, strict=True):
        replica.reported = load
    order = by_load_and_preference(replicas, affinity)
    assert sorted(r.url for r in order) == sorted(r.url for r in replicas)
    assert order[0].load <= 1.25 * min(loads) + 4
