"""The live version's object rots in the store: the learner says so, and goes on learning."""

from pathlib import Path

from learner.process import Learner
from learner.publish import publish
from tendril.blobs import BlobStore
from tendril.log import MemoryLog
from tendril.settings import LearnerSettings
from tests.builders import make_release
from tests.learner.tiny import tiny_state
from tests.learner.workbench import append, learnable_episodes, make_settings


def test_it_learns_on_against_the_last_whole_anchor(tmp_path: Path) -> None:
    settings, log = make_settings(tmp_path, max_numerics_gap=100.0), MemoryLog()
    other = tiny_state(tmp_path / "v2")
    other.policy_version = 2
    blobs = BlobStore(settings.path(settings.shipping.store))
    append(log, publish(other, blobs, tmp_path / "v2", "t", LearnerSettings(), 0.0, {}))
    append(log, make_release(policy_version=2), *learnable_episodes(settings, 4))
    for path in (blobs.root / "objects").iterdir():
        path.write_bytes(path.read_bytes()[::-1])
    learner = Learner(settings, log)
    learner.turn()
    assert learner.state.num_steps == 1
    assert rollbacks(learner) == 0
    append(log, make_release(policy_version=2, state="rolled_back", target_version=1))
    learner._follow_at = 0.0
    learner.turn()
    assert rollbacks(learner) == 1
    learner.close()


def rollbacks(learner: Learner) -> int:
    return learner.state.num_rollbacks
