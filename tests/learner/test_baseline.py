"""The baseline against its closed form, across a checkpoint, and under drift."""

import json
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.baseline import Baseline, context_keys
from tests.builders import make_episode, make_segment

OBSERVATIONS = st.lists(
    st.tuples(st.sampled_from("abc"), st.floats(-1, 1), st.floats(0, 1.2)), max_size=40
)


def path(leaf: str) -> tuple[str, ...]:
    return ("all", f"all/{leaf}")


def discounted_beta_mean(observations: list[tuple[float, float, int]], prior: float) -> float:
    """Posterior mean, back in [-1, 1], of (reward, weight, age) at half-life 5, pseudo-count 4."""
    a, b = 4 * (1 + prior) / 2, 4 * (1 - prior) / 2
    for reward, weight, age in observations:
        a += weight * 0.5 ** (age / 5) * (1 + reward) / 2
        b += weight * 0.5 ** (age / 5) * (1 - reward) / 2
    return 2 * a / (a + b) - 1


@given(OBSERVATIONS)
def test_a_prediction_is_the_discounted_posterior_mean_shrunk_to_its_parent(
    observations: list[tuple[str, float, float]],
) -> None:
    baseline = Baseline(half_life=5, pseudo_count=4)
    aged: list[tuple[str, float, float, int]] = []
    for index, (name, reward, weight) in enumerate(observations):
        baseline.update(path(name), reward, weight)
        aged.append((name, reward, weight, len(observations) - 1 - index))
    parent = discounted_beta_mean([(r, w, age) for _, r, w, age in aged], prior=0.0)
    own = [(r, w, age) for name, r, w, age in aged if name == "a"]
    assert baseline.predict(("all",)) == pytest.approx(parent, abs=1e-12)
    expected = discounted_beta_mean(own, prior=parent)
    assert baseline.predict(path("a")) == pytest.approx(expected, abs=1e-12)


def test_two_observations_give_the_hand_worked_number() -> None:
    baseline = Baseline(half_life=1, pseudo_count=1)
    baseline.update(("all",), 1.0)
    baseline.update(("all",), 0.5, weight=0.5)
    # (1/2 * 1 + .5 * .5) / (1/2 + .5 + 1)
    assert baseline.predict(("all",)) == pytest.approx(0.375, abs=1e-15)


def test_nothing_known_predicts_the_neutral_reward() -> None:
    assert Baseline(half_life=5).predict(("all", "all/acme")) == 0.0


def test_an_unknown_bucket_predicts_its_parent() -> None:
    baseline = Baseline(half_life=5)
    baseline.update(path("a"), 0.8)
    assert baseline.predict(path("never seen")) == baseline.predict(("all",)) > 0


def test_predicting_changes_nothing() -> None:
    baseline = Baseline(half_life=5)
    baseline.update(path("a"), 0.8)
    before = baseline.state()
    baseline.predict(path("b"))
    assert baseline.state() == before


def test_a_weightless_observation_only_ages_the_others() -> None:
    baseline = Baseline(half_life=1, pseudo_count=1)
    baseline.update(("all",), 1.0)
    baseline.update(("all",), -1.0, weight=0.0)
    assert baseline.predict(("all",)) == pytest.approx(0.5 / 1.5)


@given(OBSERVATIONS, OBSERVATIONS)
def test_a_baseline_resumed_through_json_or_msgpack_goes_on_bit_for_bit(
    before: list[tuple[str, float, float]], after: list[tuple[str, float, float]]
) -> None:
    baseline = Baseline(half_life=5, max_buckets=3)
    for name, reward, weight in before:
        baseline.update(path(name), reward, weight)
    state = baseline.state()
    resumed = [
        Baseline.from_state(copy, half_life=5, max_buckets=3)
        for copy in (
            json.loads(json.dumps(state)),
            msgspec.msgpack.decode(msgspec.msgpack.encode(state)),
        )
    ]
    for tracker in (baseline, *resumed):
        for name, reward, weight in after:
            tracker.update(path(name), reward, weight)
    assert all(tracker.state() == baseline.state() for tracker in resumed)


def test_the_least_recently_updated_fine_bucket_is_forgotten_first() -> None:
    baseline = Baseline(half_life=50, max_buckets=3)
    for name in ("a", "b", "a", "c"):
        baseline.update(path(name), 1.0)
    assert [bucket[0] for bucket in baseline.state()["buckets"]] == ["all/a", "all/c", "all"]
    assert baseline.predict(path("b")) == baseline.predict(("all",))


@pytest.mark.parametrize("reward", [1.01, -1.01, float("nan")])
def test_a_reward_out_of_range_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match=r"expected a reward in \[-1, 1\]"):
        Baseline(half_life=5).update(("all",), reward)


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_a_weight_out_of_range_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="expected a weight >= 0"):
        Baseline(half_life=5).update(("all",), 0.5, weight)


def test_after_a_change_of_taste_forgetting_follows_faster_than_a_running_mean() -> None:
    rng = random.Random(1)
    forgetting, running_mean = Baseline(half_life=100), Baseline(half_life=1e12)
    errors = {id(forgetting): 0.0, id(running_mean): 0.0}
    for step in range(2_000):
        accept = 0.8 if step < 1_000 else 0.2
        reward = 0.75 if rng.random() < accept else -0.25
        for tracker in (forgetting, running_mean):
            if step >= 1_000:
                errors[id(tracker)] += abs(tracker.predict(("all",)) - (accept - 0.25)) / 1_000
            tracker.update(("all",), reward)
    assert errors[id(forgetting)] < 0.5 * errors[id(running_mean)]


def test_keys_name_tenant_route_and_last_prompt_token_from_coarse_to_fine() -> None:
    keys = context_keys(make_episode())
    assert len(set(keys)) == 4
    other_tenant = context_keys(make_episode(tenant="other"))
    other_route = context_keys(make_episode(route="chat"))
    other_prompt = context_keys(make_episode(segments=(make_segment(prompt_token_ids=(5, 8)),)))
    shared = [
        sum(a == b for a, b in zip(keys, other, strict=True))
        for other in (other_tenant, other_route, other_prompt)
    ]
    assert shared == [1, 2, 3]


def test_keys_do_not_depend_on_the_action_or_its_outcome() -> None:
    silent = make_segment(
        completion_token_ids=(2,), loss_mask=(True,), behavior_logprobs=(-3.0,), credit=(0.0,)
    )
    fields = {"reward": 0.0, "outcome": "suppressed", "segments": (silent,), "shown_bytes": 0}
    assert context_keys(make_episode(**fields)) == context_keys(make_episode())


def test_an_empty_prompt_has_keys_and_an_episode_without_segments_is_refused() -> None:
    empty = make_episode(segments=(make_segment(prompt_token_ids=()),))
    assert len(context_keys(empty)) == 4
    with pytest.raises(ValueError, match="episode e1: expected at least 1 segment, got 0"):
        context_keys(make_episode(episode_id="e1", segments=()))
