"""A learner that ends and starts again: killed, restarted, in line, on another log."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from learner.process import Learner
from tendril.log import MemoryLog, TopicPartition, open_log
from tests.learner.workbench import append, learnable_episodes, make_settings

PROJECT = Path(__file__).parents[2]
PLACE = TopicPartition("episodes", 0)


def _same_state(one: Path, other: Path) -> None:
    first, second = (torch.load(path, weights_only=True) for path in (one, other))
    torch.testing.assert_close(first["model"], second["model"], rtol=0, atol=0)
    slots = [saved["optimizer"]["state"] for saved in (first, second)]
    torch.testing.assert_close(slots[0], slots[1], rtol=0, atol=0)
    for saved in (first, second):
        del saved["model"], saved["optimizer"]
    assert first == second


@pytest.mark.slow
def test_a_learner_killed_and_restarted_equals_one_that_never_stopped(tmp_path: Path) -> None:
    num_episodes = 4 * 40
    for name in ("whole", "killed"):
        settings = make_settings(tmp_path / name, learning_rate=1e-3)
        log = open_log(settings)
        episodes = learnable_episodes(settings, num_episodes - 1)
        append(log, *episodes[:50], episodes[3], *episodes[50:])
        log.close()

    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.learner.learn_child",
                   str(tmp_path / name / "tendril.toml"), str(num_episodes)]  # fmt: skip
        return subprocess.Popen(
            command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    for steps in (1, 5, 14):
        child = start("killed")
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= steps:
                break
        child.kill()
        child.communicate()
    for name in ("killed", "whole"):
        child = start(name)
        _, errors = child.communicate(timeout=100)
        assert (child.returncode, errors) == (0, "")
    paths = [tmp_path / name / "workspace/learner/checkpoint.pt" for name in ("whole", "killed")]
    _same_state(*paths)
    saved = torch.load(paths[1], weights_only=True)
    assert saved["counts"] == {"trained": 156, "duplicate": 1}
    assert (saved["num_steps"], saved["num_read"]) == (39, 157)


def test_a_restarted_learner_reads_on_from_its_checkpoint(tmp_path: Path) -> None:
    settings, log = make_settings(tmp_path, checkpoint_every_steps=1), MemoryLog()
    append(log, *learnable_episodes(settings, 10))
    for _ in range(3):
        learner = Learner(settings, log)
        learner.turn()
        learner.close()
    assert learner.state.counts == {"trained": 8}
    assert learner.state.offsets == {PLACE: 8}
    assert learner.ledger().outcomes["episodes"] == {"trained": 8, "pending": 2}


def test_a_log_shorter_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    settings, log = make_settings(tmp_path, checkpoint_every_steps=1), MemoryLog()
    append(log, *learnable_episodes(settings, 4))
    learner = Learner(settings, log)
    learner.turn()
    learner.close()
    with pytest.raises(ValueError, match=r"checkpoint\.pt: expected .* at most 0.*got 4"):
        Learner(settings, MemoryLog())
