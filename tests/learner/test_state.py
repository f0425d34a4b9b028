"""The learner's checkpoint, and what is published from it."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from learner import state as states
from learner.publish import publish, published_tensors
from learner.step import train_step
from tendril.blobs import BlobStore
from tendril.log import TopicPartition
from tendril.settings import LearnerSettings
from tendril.weights import read_weights, weights_digest
from tests.learner.tiny import SILENCE, served_episodes, tiny_model, tiny_state

SETTINGS = LearnerSettings(learning_rate=1e-2)
EPISODES = TopicPartition("episodes", 0)


def _step(state: states.LearnerState) -> None:
    episodes = served_episodes(tiny_model(), [(4, 5), (6, 7)], [1.0, -1.0])
    train_step(state, episodes, tiny_model(), 1, SETTINGS, SILENCE)


def _same(one: states.LearnerState, other: states.LearnerState) -> bool:
    trees = [
        (s.model.state_dict(), s.optimizer.state_dict()["state"], s.baseline.state())
        for s in (one, other)
    ]
    torch.testing.assert_close(trees[0][0], trees[1][0], rtol=0, atol=0)
    torch.testing.assert_close(trees[0][1], trees[1][1], rtol=0, atol=0)
    return trees[0][2] == trees[1][2]


def test_there_is_no_state_without_a_file(tmp_path: Path) -> None:
    assert states.load(tmp_path / "none.pt", tmp_path, SETTINGS) is None


def test_a_loaded_state_is_the_saved_one_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    state = tiny_state(tmp_path / "checkpoint", SETTINGS)
    _step(state)
    state.offsets, state.num_read = {EPISODES: 7}, 7
    state.add({"trained": 2, "held out": 5})
    state.remember(["e0", "e1"])
    state.policy_version, state.parent, state.unpublished = 4, 3, True
    state.recipe_digest, state.newest_feedback_at, state.num_rollbacks = "recipe", 1.5, 2
    states.save(state, tmp_path / "state.pt")
    loaded = states.load(tmp_path / "state.pt", tmp_path / "checkpoint", SETTINGS)
    assert loaded is not None
    assert _same(loaded, state)
    for name in (*states.PLAIN_FIELDS, "policy_version", "offsets"):
        assert getattr(loaded, name) == getattr(state, name)
    assert list(loaded.seen_ids) == ["e0", "e1"]
    for each in (loaded, state):
        _step(each)
    assert _same(loaded, state)


def test_the_learning_rate_is_that_of_the_settings_after_a_restart(tmp_path: Path) -> None:
    state = tiny_state(tmp_path / "checkpoint", SETTINGS)
    states.save(state, tmp_path / "state.pt")
    slower = LearnerSettings(learning_rate=1e-4)
    loaded = states.load(tmp_path / "state.pt", tmp_path / "checkpoint", slower)
    assert loaded is not None
    assert loaded.optimizer.param_groups[0]["lr"] == 1e-4


def test_only_the_newest_ids_are_remembered(tmp_path: Path) -> None:
    state = tiny_state(tmp_path / "checkpoint")
    num_ids = states.REMEMBERED_IDS + 3
    state.remember(str(i) for i in range(num_ids))
    assert len(state.seen_ids) == states.REMEMBERED_IDS
    assert next(iter(state.seen_ids)) == "3"


def test_published_weights_are_the_rounded_masters_and_load_in_transformers(
    tmp_path: Path,
) -> None:
    state = tiny_state(tmp_path / "checkpoint", SETTINGS)
    _step(state)
    state.policy_version, state.offsets, state.recipe_digest = 2, {EPISODES: 9}, "recipe"
    blobs = BlobStore(tmp_path / "store")
    manifest = publish(state, blobs, tmp_path / "checkpoint", "tok", SETTINGS, 5.0, {"loss": 1.0})
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for file in manifest.snapshot:
        (folder / file.name).write_bytes(blobs.get(file))
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {
        file.name for file in manifest.snapshot
    }
    assert weights_digest(read_weights(folder / "model.safetensors")) == manifest.weights_digest
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, master in state.model.named_parameters():
        rounded = master.detach().to(torch.bfloat16).float()
        assert torch.equal(loaded.get_parameter(name).detach(), rounded)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert weights_digest(published_tensors(loaded)) == manifest.weights_digest
    assert (manifest.policy_version, manifest.parent, manifest.published_at) == (2, 1, 5.0)
    assert (manifest.recipe_digest, manifest.num_steps) == ("recipe", 1)
    assert manifest.trained_offsets == {"episodes/0": 9}


def test_publishing_again_gives_the_same_objects(tmp_path: Path) -> None:
    state = tiny_state(tmp_path / "checkpoint")
    blobs = BlobStore(tmp_path / "store")
    first, again = (
        publish(state, blobs, tmp_path / "checkpoint", "tok", SETTINGS, now, {})
        for now in (1.0, 2.0)
    )
    assert (first.snapshot, first.weights_digest) == (again.snapshot, again.weights_digest)
