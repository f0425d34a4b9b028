"""How far attackers move a mean of rewards: raw, four robust means, and our caps.

Real activity skew (messages by sender of a public chat corpus), synthetic rewards with a true rate
of 0.30. Established users are older than probation. New sybils are in probation; younger ones would
weigh nothing. Aged sybils are as old as anybody: caps cannot tell them from people, and the table
says so.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import wheel
from benchmarks.figures import Figure
from signals.trust.caps import capped, influence_bound
from tendril.settings import TrustSettings

TRUE_RATE = 0.30
NUM_SEEDS = 20
CAP_EVENTS = 20
TRIM = 0.05
NUM_GROUPS = 21
OLD_S, YOUNG_S = 400 * 86_400.0, 14 * 86_400.0
MAX_MOVE = 0.005
NOISE = 0.005
"""Allowed above the analytic bound: what the mean of so few users moves by chance."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Batch(NamedTuple):
    """One batch of events: who, what, how old the account is."""

    users_N: IntArray
    rewards_N: FloatArray
    ages_s_N: FloatArray


def run() -> list[Figure]:
    """The table, averaged over seeds, and what is promised of the caps."""
    counts = activity()
    table = {
        case: means_of([attack(counts, np.random.default_rng(seed)) for seed in range(NUM_SEEDS)])
        for case, attack in ATTACKS.items()
    }
    figures = [
        Figure(metric=f"{case}: {name}", unit="mean", ours=value)
        for case, means in table.items()
        for name, value in means.items()
        if name != "caps"
    ]
    return figures + promises(table)


def promises(table: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    """What caps must hold, against the raw mean of the same events."""
    clean = table["clean"]["caps"]
    bound = influence_bound(TrustSettings().max_probation_share, TRUE_RATE)
    limits = {
        "top user hostile": MAX_MOVE,
        "one new account x 2,000": MAX_MOVE,
        "100 new sybils x 20": bound + NOISE,
        "300 new sybils x 3": bound + NOISE,
    }
    figures = []
    for case, means in table.items():
        moved, limit = abs(means["caps"] - clean), limits.get(case)
        figures.append(Figure(
            metric=f"{case}: caps move", unit="mean", ours=moved, target=limit,
            peer=abs(means["raw"] - table["clean"]["raw"]), peer_name="raw",
            ok=None if limit is None else moved <= limit,
        ))  # fmt: skip
        figures.append(Figure(metric=f"{case}: caps", unit="mean", ours=means["caps"]))
    return figures


def means_of(batches: list[Batch]) -> dict[str, float]:
    """Each estimator's mean over the batches."""
    return {
        name: float(np.mean([estimate(batch) for batch in batches]))
        for name, estimate in ESTIMATES.items()
    }


def activity() -> IntArray:
    """Messages a sender, most active first; senders are counted, never named."""
    chats = json.loads(wheel("chitchat-dataset").read("chitchat_dataset/dataset.json"))
    senders = Counter(
        message["sender"]
        for chat in chats.values()
        for turn in chat["messages"]
        for message in (turn if isinstance(turn, list) else [turn])
    )
    return np.array(sorted(senders.values(), reverse=True), np.int64)


def clean(counts: IntArray, rng: np.random.Generator) -> Batch:
    """Every user accepts at a rate of its own around the true one."""
    rates_U = rng.beta(12 * TRUE_RATE, 12 * (1 - TRUE_RATE), len(counts))
    users_N = np.repeat(np.arange(len(counts)), counts)
    rewards_N = (rng.random(len(users_N)) < rates_U[users_N]).astype(float)
    return Batch(users_N, rewards_N, np.full(len(users_N), OLD_S))


def top_hostile(counts: IntArray, rng: np.random.Generator) -> Batch:
    """The most active user takes everything."""
    batch = clean(counts, rng)
    return batch._replace(rewards_N=np.where(batch.users_N == 0, 1.0, batch.rewards_N))


def sybils(num_users: int, num_events: int, age_s: float) -> Callable[..., Batch]:
    """Accounts that take everything, beside the honest ones."""

    def attack(counts: IntArray, rng: np.random.Generator) -> Batch:
        batch = clean(counts, rng)
        extra = np.repeat(np.arange(len(counts), len(counts) + num_users), num_events)
        return Batch(
            np.concatenate((batch.users_N, extra)),
            np.concatenate((batch.rewards_N, np.ones(len(extra)))),
            np.concatenate((batch.ages_s_N, np.full(len(extra), age_s))),
        )

    return attack


ATTACKS: Mapping[str, Callable[[IntArray, np.random.Generator], Batch]] = {
    "clean": clean,
    "top user hostile": top_hostile,
    "one new account x 2,000": sybils(1, 2_000, YOUNG_S),
    "100 new sybils x 20": sybils(100, 20, YOUNG_S),
    "300 new sybils x 3": sybils(300, 3, YOUNG_S),
    "100 aged sybils x 20": sybils(100, 20, OLD_S),
    "300 aged sybils x 3": sybils(300, 3, OLD_S),
}


def raw(batch: Batch) -> float:
    """The plain mean."""
    return float(batch.rewards_N.mean())


def user_means(batch: Batch) -> tuple[FloatArray, FloatArray]:
    """Mean reward and number of events by user."""
    _, index_N = np.unique(batch.users_N, return_inverse=True)
    counts_U = np.bincount(index_N).astype(float)
    return np.bincount(index_N, batch.rewards_N) / counts_U, counts_U


def weighted(power: Callable[[FloatArray], FloatArray]) -> Callable[[Batch], float]:
    """The mean with a weight a user that is a function of its number of events."""

    def estimate(batch: Batch) -> float:
        means_U, counts_U = user_means(batch)
        return float(np.average(means_U, weights=power(counts_U)))

    return estimate


def trimmed(batch: Batch) -> float:
    """Mean of users' means, 5 % cut at each end, weighted by the capped number of events."""
    means_U, counts_U = user_means(batch)
    order = np.argsort(means_U, kind="stable")
    weights = np.minimum(counts_U[order], CAP_EVENTS)
    place = np.cumsum(weights) / weights.sum()
    keep = (place > TRIM) & (place <= 1 - TRIM)
    return float(np.average(means_U[order][keep], weights=weights[keep]))


def median_of_means(batch: Batch) -> float:
    """Median over 21 groups of users of their capped means."""
    means_U, counts_U = user_means(batch)
    groups_U = np.random.default_rng(0).integers(0, NUM_GROUPS, len(means_U))
    weights_U = np.minimum(counts_U, CAP_EVENTS)
    totals = np.bincount(groups_U, weights_U * means_U) / np.bincount(groups_U, weights_U)
    return float(np.median(totals))


def with_caps(batch: Batch) -> float:
    """The mean with the weights of `signals.trust.caps` at their defaults."""
    tenants_N = np.full(len(batch.users_N), "t")
    weights = capped(
        batch.users_N.astype(str), tenants_N, batch.ages_s_N, TrustSettings()
    ).weights_N
    return float(np.average(batch.rewards_N, weights=weights))


ESTIMATES: Mapping[str, Callable[[Batch], float]] = {
    "raw": raw,
    "cap 20": weighted(lambda counts_U: np.minimum(counts_U, CAP_EVENTS)),
    "sqrt": weighted(np.sqrt),
    "trimmed": trimmed,
    "median of 21": median_of_means,
    "caps": with_caps,
}
