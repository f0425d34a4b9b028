"""Versions that the learner publishes: once each, never reused, left after a rollback."""

from pathlib import Path
from typing import Any

import pytest
import torch

from learner.process import Learner
from learner.publish import publish
from tendril.blobs import BlobStore
from tendril.log import EventLog, MemoryLog
from tendril.records import (
    PolicyManifest,
)
from tendril.settings import LearnerSettings, Settings
from tests.builders import make_release
from tests.learner.tiny import (
    tiny_model,
    tiny_state,
)
from tests.learner.workbench import append, learnable_episodes, make_settings, read_all


class OutageLog(MemoryLog):
    """Fails the appends of manifests while `away`."""

    away = False

    def append(self, records: Any) -> None:
        pairs = list(records)
        if self.away and any(isinstance(record, PolicyManifest) for _, record in pairs):
            raise InterruptedError
        super().append(pairs)


def test_a_version_cut_off_between_checkpoint_and_log_is_published_with_the_same_weights(
    tmp_path: Path,
) -> None:
    settings = make_settings(tmp_path, publish_every_s=1e-6, min_steps_per_version=1)
    log = OutageLog()
    append(log, *learnable_episodes(settings, 8))
    learner = Learner(settings, log)
    log.away = True
    with pytest.raises(InterruptedError):
        learner.turn()
    with pytest.raises(InterruptedError):  # no step comes before the version is out
        learner.turn()
    assert learner.state.num_steps == 1
    learner.close()
    log.away = False
    restarted = Learner(settings, log)
    restarted.turn()
    manifests = read_all(log, PolicyManifest)
    assert [(m.policy_version, m.parent, m.num_steps) for m in manifests] == [(2, 1, 1), (3, 2, 2)]
    assert manifests[0].trained_offsets == {"episodes/0": 4}
    assert manifests[0].recipe_digest == "recipe-1"
    assert manifests[0].weights_digest != manifests[1].weights_digest
    restarted.close()


def test_a_manifest_announced_twice_has_one_digest(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, publish_every_s=1e-6, min_steps_per_version=1)
    log = MemoryLog()
    append(log, *learnable_episodes(settings, 4))
    learner = Learner(settings, log)
    learner.turn()
    learner.state.unpublished = True  # as if killed between the log and the checkpoint
    learner.state.parent = 1
    learner.save()
    learner.close()
    again = Learner(settings, log)
    again.turn()
    again.close()
    first, second = read_all(log, PolicyManifest)
    assert (first.policy_version, first.weights_digest) == (2, second.weights_digest)
    assert second.policy_version == 2


def test_a_learner_without_its_checkpoint_never_reuses_a_version(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, publish_every_s=1e-6, min_steps_per_version=1)
    log = MemoryLog()
    append(log, *learnable_episodes(settings, 8))
    for _ in range(2):
        learner = Learner(settings, log)
        learner.turn()
        learner.close()
        settings.path(Path("learner/checkpoint.pt")).unlink()
    assert [m.policy_version for m in read_all(log, PolicyManifest)] == [2, 3]


def _publish_other(settings: Settings, log: EventLog, folder: Path, version: int) -> None:
    """A version of weights that the learner did not make."""
    other = tiny_state(folder, LearnerSettings())
    other.model.load_state_dict(tiny_model(seed=version).state_dict())
    other.policy_version = version
    blobs = BlobStore(settings.path(settings.shipping.store))
    append(log, publish(other, blobs, folder, "tok", LearnerSettings(), 0.0, {}))


def test_after_a_rollback_the_learner_goes_on_from_the_target_with_a_fresh_optimizer(
    tmp_path: Path,
) -> None:
    settings, log = make_settings(tmp_path, max_numerics_gap=100.0), MemoryLog()
    for version in (2, 3):
        _publish_other(settings, log, tmp_path / f"v{version}", version)
    append(log, make_release(policy_version=2), make_release(policy_version=3))
    append(log, *learnable_episodes(settings, 4))
    learner = Learner(settings, log)
    learner.state.parent = learner.state.policy_version = 3
    learner.turn()
    assert learner.state.num_steps == 1
    append(log, make_release(policy_version=3, state="rolled_back", target_version=2))
    learner.turn()
    target = tiny_model(seed=2).state_dict()
    torch.testing.assert_close(dict(learner.state.model.state_dict()), dict(target))
    assert not learner.state.optimizer.state
    assert (learner.state.parent, learner.state.steps_since_publish) == (2, 0)
    append(log, *learnable_episodes(settings, 4, feedback_at=9.0))
    for record in learnable_episodes(settings, 8)[4:]:
        append(log, record)
    learner.turn()
    learner.turn()
    assert learner.state.num_steps == 2
    trained = {n: t.clone() for n, t in learner.state.model.state_dict().items()}
    learner.state.parent = 4  # published meanwhile, and not yet in service
    learner.save()
    learner.close()
    restarted = Learner(settings, log)
    restarted.turn()  # reads the old rollback again, and must not answer it twice
    torch.testing.assert_close(dict(restarted.state.model.state_dict()), trained, rtol=0, atol=0)
    assert restarted.state.parent == 4
    restarted.close()
