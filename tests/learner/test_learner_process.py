"""The learner on a log: everything accounted for, one at a time, stopped in order."""

import math
import threading
from pathlib import Path

import msgspec
import pytest

from learner import state as states
from learner.process import Learner, run
from tendril.log import MemoryLog, open_log
from tendril.records import (
    DeadLetter,
)
from tests.builders import make_episode
from tests.learner.workbench import append, learnable_episodes, make_settings, read_all


def test_every_episode_read_has_one_outcome(tmp_path: Path) -> None:
    settings, log = make_settings(tmp_path), MemoryLog()
    good = learnable_episodes(settings, 6)
    odd = msgspec.structs.replace(good[0], episode_id="odd", reward=math.nan)
    append(log, good[0], good[0], odd, *good[1:], make_episode(held_out=True))
    log._records["episodes"].append(log._records["episodes"][0]._replace(offset=9, value=b"\xc1"))
    learner = Learner(settings, log)
    for _ in range(3):
        learner.turn()
    assert learner.state.counts == {"trained": 4, "duplicate": 1, "malformed": 1}
    ledger = learner.ledger()
    assert ledger.read == {"episodes": 10}
    assert ledger.outcomes["episodes"] == {
        "trained": 4, "duplicate": 1, "malformed": 1, "held out": 1, "invalid": 1, "pending": 2,
    }  # fmt: skip
    assert ledger.balanced
    [letter] = read_all(log, DeadLetter)
    assert (letter.topic, letter.value) == ("episodes", b"\xc1")
    append(log, *good)  # appended again after a crash of their writer
    learner.turn()
    assert learner.ledger().outcomes["episodes"]["duplicate"] == 7
    assert learner.ledger().balanced
    assert learner.state.num_steps == 1
    learner.close()


def test_a_refused_batch_is_counted_and_learning_goes_on(tmp_path: Path) -> None:
    settings, log = make_settings(tmp_path), MemoryLog()
    good = learnable_episodes(settings, 8)
    off = [
        msgspec.structs.replace(
            e, segments=(msgspec.structs.replace(e.segments[0], behavior_logprobs=(-9.0, -9.0)),)
        )
        for e in good[:4]
    ]
    append(log, *off, *good[4:])
    learner = Learner(settings, log)
    learner.turn()
    assert (learner.state.num_steps, learner.state.counts) == (0, {"numerics gap": 4})
    learner.turn()
    assert learner.state.counts == {"numerics gap": 4, "trained": 4}
    assert learner.state.recipe_digest == "recipe-1"
    learner.close()


def test_a_stopped_learner_leaves_a_checkpoint_and_a_balanced_ledger(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, checkpoint_every_steps=1_000)
    log = open_log(settings)
    append(log, *learnable_episodes(settings, 6))
    stop = threading.Event()
    timer = threading.Timer(1.0, stop.set)
    timer.start()
    run(settings, stop)
    timer.join()
    loaded = states.load(
        settings.path(Path("learner/checkpoint.pt")),
        settings.serving.checkpoint, settings.learner,
    )  # fmt: skip
    assert loaded is not None
    assert loaded.counts == {"trained": 4}
    log.close()


def test_a_second_learner_in_a_workspace_is_refused(tmp_path: Path) -> None:
    settings, stop = make_settings(tmp_path), threading.Event()
    first = threading.Thread(target=run, args=(settings, stop))
    first.start()
    checkpoint_lock = settings.path(Path("learner/lock"))
    while not checkpoint_lock.exists():
        stop.wait(0.01)
    stop.wait(0.2)
    with pytest.raises(BlockingIOError, match="expected no other learner in this workspace"):
        run(settings, threading.Event())
    stop.set()
    first.join()
