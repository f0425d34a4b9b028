"""One optimizer step on a tiny model: towards reward, away from its lack, or not at all."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from kernels.scoring import completion_logprobs
from learner.batches import build_batch
from learner.state import LearnerState
from learner.step import NumericsGap, train_step
from tendril.records import Episode
from tendril.settings import LearnerSettings
from tests.learner.tiny import SILENCE, served_episodes, tiny_model, tiny_state

SETTINGS = LearnerSettings(learning_rate=1e-2, kl_coefficient=0.0)
COMPLETIONS = [(4, 5), (6, 7)] * 4


@pytest.fixture
def state(tmp_path: Path) -> LearnerState:
    return tiny_state(tmp_path / "checkpoint", SETTINGS)


def _fingerprint(state: LearnerState) -> tuple[bytes, ...]:
    tensors = list(state.model.state_dict().values())
    tensors += [t for slots in state.optimizer.state.values() for t in slots.values()]
    weights = [t.numpy().tobytes() for t in tensors]
    return (*weights, msgspec.msgpack.encode(state.baseline.state()), b"%d" % state.num_steps)


def _scores(state: LearnerState, episodes: Sequence[Episode]) -> torch.Tensor:
    with torch.no_grad():
        items = build_batch(episodes, SILENCE).items
        return completion_logprobs(state.model, items, SILENCE).reshape(len(episodes), 2).sum(1)


def test_a_step_raises_what_was_rewarded_and_lowers_what_was_punished(state: LearnerState) -> None:
    episodes = served_episodes(tiny_model(), COMPLETIONS, [1.0, -1.0] * 4)
    before = _scores(state, episodes)
    for _ in range(3):
        metrics = train_step(state, episodes, tiny_model(), 1, SETTINGS, SILENCE)
    change = _scores(state, episodes) - before
    assert (change[0::2] > 0.05).all()
    assert (change[1::2] < -0.05).all()
    assert state.num_steps == 3
    assert metrics["reward"] == 0.0
    assert metrics["numerics_gap"] < 1e-5


def test_the_kl_term_alone_pulls_back_to_the_anchor(state: LearnerState) -> None:
    pull = LearnerSettings(learning_rate=1e-2, kl_coefficient=1.0, max_numerics_gap=100.0)
    anchor = tiny_model(seed=1)
    episodes = served_episodes(tiny_model(), COMPLETIONS, [0.0] * 8)
    items = build_batch(episodes, SILENCE).items

    def distance() -> float:
        with torch.no_grad():
            gap = completion_logprobs(state.model, items, SILENCE)
            return float((gap - completion_logprobs(anchor, items, SILENCE)).square().mean())

    before = distance()
    for _ in range(5):
        train_step(state, episodes, anchor, 2, pull, SILENCE)
    assert distance() < before


def test_a_numerics_gap_is_refused_before_anything_changes(state: LearnerState) -> None:
    good = served_episodes(tiny_model(), COMPLETIONS, [1.0, -1.0] * 4)
    train_step(state, good, tiny_model(), 1, SETTINGS, SILENCE)
    before = _fingerprint(state)
    off = served_episodes(tiny_model(seed=5), COMPLETIONS, [1.0, -1.0] * 4)
    with pytest.raises(NumericsGap, match=r"policy version 1: expected .* at most 0.01 nats, got"):
        train_step(state, off, tiny_model(), 1, SETTINGS, SILENCE)
    assert _fingerprint(state) == before


def test_decisions_of_other_versions_do_not_measure_the_gap(state: LearnerState) -> None:
    off = served_episodes(tiny_model(seed=5), COMPLETIONS, [1.0, -1.0] * 4)
    metrics = train_step(state, off, tiny_model(), 2, SETTINGS, SILENCE)
    assert "numerics_gap" not in metrics


def test_a_gradient_that_is_not_finite_changes_nothing(state: LearnerState) -> None:
    episodes = served_episodes(tiny_model(), COMPLETIONS, [1.0, -1.0] * 4)
    train_step(state, episodes, tiny_model(), 1, SETTINGS, SILENCE)
    before = _fingerprint(state)
    segment = msgspec.structs.replace(episodes[0].segments[0], credit=(float("nan"), 0.0))
    poisoned = [msgspec.structs.replace(episodes[0], segments=(segment,)), *episodes[1:]]
    with pytest.raises(FloatingPointError, match="step 1: gradient norm is nan"):
        train_step(state, poisoned, tiny_model(), 1, SETTINGS, SILENCE)
    assert _fingerprint(state) == before
    train_step(state, episodes, tiny_model(), 1, SETTINGS, SILENCE)  # and it goes on
    assert state.num_steps == 2


@pytest.mark.parametrize("reward", [0.0, 1.0, -1.0])
def test_constant_rewards_give_finite_steps(state: LearnerState, reward: float) -> None:
    episodes = served_episodes(tiny_model(), COMPLETIONS, [reward] * 8)
    for _ in range(3):
        metrics = train_step(state, episodes, tiny_model(), 1, SETTINGS, SILENCE)
    assert all(torch.isfinite(torch.tensor(value)) for value in metrics.values())
    assert all(torch.isfinite(p).all() for p in state.model.parameters())


def test_the_baseline_is_read_before_it_learns_of_the_batch(
    state: LearnerState, tmp_path: Path
) -> None:
    episodes = served_episodes(tiny_model(), COMPLETIONS[:1], [1.0])
    train_step(state, episodes, tiny_model(), 1, SETTINGS, SILENCE)
    assert state.baseline.state()["num_observations"] == 1
    # A zero baseline: the advantage is the reward, RMS 1, so the loss is minus the mean log-prob.
    [segment] = episodes[0].segments
    fresh = tiny_state(tmp_path / "checkpoint", SETTINGS)
    metrics = train_step(fresh, episodes, tiny_model(), 1, SETTINGS, SILENCE)
    assert metrics["loss"] == pytest.approx(-sum(segment.behavior_logprobs) / 2, abs=1e-5)
