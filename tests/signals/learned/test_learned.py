"""The learned reward: it ships where it is better, and is refused where it is not."""

import math
import random

import pytest

from benchmarks.datasets import ChatEvent, chitchat
from signals.learned.model import fit_learned
from signals.learned.rows import Observation, Split, split
from signals.learned.verdict import judge_candidate

DAY_S = 86_400.0


def simulated(num_users: int = 400, *, signal: float = 2.0, seed: int = 1) -> list[Observation]:
    """Users who accept 27 %; what stays after a day hangs on early retention and on the user."""
    chance = random.Random(seed)
    rows = []
    for user in range(num_users):
        leniency = chance.gauss(0, 0.5)
        for _ in range(chance.randint(5, 25)):
            accepted = chance.random() < 0.27
            kept = chance.betavariate(4, 1) if accepted and chance.random() < 0.9 else None
            latency_s = chance.expovariate(1.0)
            logit = signal * (
                (1.5 if accepted else -1.5) + 3 * ((0.8 if kept is None else kept) - 0.8)
                - 0.8 * (latency_s - 1)
            ) + leniency  # fmt: skip
            served_at = chance.uniform(0, 20) * DAY_S
            rows.append(
                Observation(
                    user_key=f"u{user}", served_at=served_at, known_at=served_at + DAY_S,
                    features={"accepted": float(accepted), "kept_30s": kept,
                              "latency_s": latency_s},
                    default_reward=(kept or 1.0) - 0.25 if accepted else -0.25,
                    good=chance.random() < 1 / (1 + math.exp(-logit)),
                )
            )  # fmt: skip
    return rows


def parts_of(rows: list[Observation], cutoff_s: float = 10 * DAY_S) -> Split:
    return split(rows, cutoff_s)


def test_a_split_shares_no_user_and_trains_on_nothing_known_later() -> None:
    parts = parts_of(simulated())
    users = [{row.user_key for row in part} for part in parts]
    assert all(users)
    assert not users[0] & users[1] | users[0] & users[2] | users[1] & users[2]
    assert max(row.known_at for row in parts.train + parts.calibrate) <= 10 * DAY_S
    assert min(row.served_at for row in parts.later) >= 10 * DAY_S


def test_a_candidate_that_sees_what_the_recipe_does_not_ships() -> None:
    parts = parts_of(simulated())
    verdict = judge_candidate(fit_learned(parts.train, parts.calibrate), parts)
    assert verdict.ships, verdict
    assert verdict.auc is not None
    assert verdict.default_auc is not None
    assert verdict.auc > verdict.default_auc


def test_a_candidate_without_a_signal_is_refused() -> None:
    parts = parts_of(simulated(signal=0.0))
    verdict = judge_candidate(fit_learned(parts.train, parts.calibrate), parts)
    assert not verdict.ships
    assert verdict.reasons


def test_a_small_sample_is_refused() -> None:
    parts = parts_of(simulated())
    few = parts._replace(later=parts.later[:60])
    verdict = judge_candidate(fit_learned(parts.train, parts.calibrate), few)
    assert not verdict.ships
    assert verdict.reasons[0].startswith("too small")


def test_a_user_in_both_sets_is_an_error() -> None:
    parts = parts_of(simulated())
    model = fit_learned(parts.train, parts.calibrate)
    with pytest.raises(ValueError, match="no user"):
        fit_learned(parts.train, parts.train)
    with pytest.raises(ValueError, match="no user"):
        judge_candidate(model, parts._replace(later=parts.train))


def test_the_same_rows_give_the_same_digest() -> None:
    first, again = (
        fit_learned(parts.train, parts.calibrate)
        for parts in (parts_of(simulated()), parts_of(simulated()[::-1]))
    )
    assert first.digest == again.digest
    assert first.reward({"accepted": 1.0}) > first.reward({"accepted": 0.0})


@pytest.mark.slow
def test_ratings_of_real_conversations_are_not_learned_from_early_signals() -> None:
    """Ratings carry little of what happened: the candidate must be refused."""
    verdict = rated_chats()
    assert not verdict.ships, verdict


def rated_chats():
    events, ratings = chitchat()
    messages: dict[int, list[ChatEvent]] = {}
    for event in events:
        messages.setdefault(event.conversation, []).append(event)
    rows = []
    for rating in ratings:
        found = sorted(messages.get(rating.conversation, []), key=lambda e: e.at)
        early = [event for event in found if event.at <= found[0].at + 300]
        if not early:
            continue
        answer = next((e.at - early[0].at for e in early if e.sender != early[0].sender), None)
        rows.append(
            Observation(
                user_key=early[0].sender, served_at=early[0].at, known_at=early[0].at + DAY_S,
                features={"messages": math.log(len(early)), "answered": float(answer is not None),
                          "answer_s": answer},
                default_reward=0.0,
                good=min(rating.witty, rating.interesting, rating.upbeat) >= 5,
            )
        )  # fmt: skip
    starts = sorted(row.served_at for row in rows)
    parts = split(rows, starts[len(starts) // 2])
    return judge_candidate(fit_learned(parts.train, parts.calibrate), parts)
