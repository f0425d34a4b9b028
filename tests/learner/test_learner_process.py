"""The learner on a log: everything accounted for, resumed exactly, published once a version."""

import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from learner import state as states
from learner.process import Learner, run
from learner.publish import publish
from tendril.blobs import BlobStore
from tendril.log import EventLog, MemoryLog, SqliteLog, TopicPartition
from tendril.records import (
    DeadLetter,
    Episode,
    PolicyManifest,
    Record,
    decode,
)
from tendril.settings import LearnerSettings, Settings, load_settings
from tests.builders import make_episode, make_release
from tests.learner.tiny import (
    served_episodes,
    tiny_model,
    tiny_state,
    tokenizer_digest,
    write_tiny_checkpoint,
)

PROJECT = Path(__file__).parents[2]
PLACE = TopicPartition("episodes", 0)


def _settings(folder: Path, **learner: Any) -> Settings:
    """No publishing, batches of 4, unless a test says otherwise."""
    write_tiny_checkpoint(folder / "checkpoint")
    values = {"batch_episodes": 4, "publish_every_s": 1e9, "checkpoint_every_steps": 2} | learner
    lines = [f'workspace = "{folder / "workspace"}"', "[learner]"]
    lines += [f"{name} = {value}" for name, value in values.items()]
    lines += ["[serving]", f'checkpoint = "{folder / "checkpoint"}"']
    (folder / "tendril.toml").write_text("\n".join(lines))
    return load_settings(folder / "tendril.toml")


def _episodes(settings: Settings, num: int, **overrides: Any) -> list[Episode]:
    digest = tokenizer_digest(settings.serving.checkpoint)
    completions = [(4 + i % 5, 9 + i % 3) for i in range(num)]
    rewards = [1.0 if i % 3 else -0.5 for i in range(num)]
    fields = {"tokenizer_digest": digest, "recipe_digest": "recipe-1"} | overrides
    return served_episodes(tiny_model(), completions, rewards, **fields)


def _append(log: EventLog, *records: Record) -> None:
    log.append([("s1", record) for record in records])


def _read(log: EventLog, record_type: type[Any]) -> list[Any]:
    reader = log.reader("test", (record_type.TOPIC,))
    rows = reader.poll(1_000, 0.0)
    reader.close()
    return [decode(record_type, row.value) for row in rows]


def test_every_episode_read_has_one_outcome(tmp_path: Path) -> None:
    settings, log = _settings(tmp_path), MemoryLog()
    good = _episodes(settings, 6)
    odd = msgspec.structs.replace(good[0], episode_id="odd", reward=math.nan)
    _append(log, good[0], good[0], odd, *good[1:], make_episode(held_out=True))
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
    [letter] = _read(log, DeadLetter)
    assert (letter.topic, letter.value) == ("episodes", b"\xc1")
    _append(log, *good)  # appended again after a crash of their writer
    learner.turn()
    assert learner.ledger().outcomes["episodes"]["duplicate"] == 7
    assert learner.ledger().balanced
    assert learner.state.num_steps == 1
    learner.close()


def test_a_refused_batch_is_counted_and_learning_goes_on(tmp_path: Path) -> None:
    settings, log = _settings(tmp_path), MemoryLog()
    good = _episodes(settings, 8)
    off = [
        msgspec.structs.replace(
            e, segments=(msgspec.structs.replace(e.segments[0], behavior_logprobs=(-9.0, -9.0)),)
        )
        for e in good[:4]
    ]
    _append(log, *off, *good[4:])
    learner = Learner(settings, log)
    learner.turn()
    assert (learner.state.num_steps, learner.state.counts) == (0, {"numerics gap": 4})
    learner.turn()
    assert learner.state.counts == {"numerics gap": 4, "trained": 4}
    assert learner.state.recipe_digest == "recipe-1"
    learner.close()


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
        settings = _settings(tmp_path / name, learning_rate=1e-3)
        log = SqliteLog(settings.path(settings.log.path))
        episodes = _episodes(settings, num_episodes - 1)
        _append(log, *episodes[:50], episodes[3], *episodes[50:])
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
    settings, log = _settings(tmp_path, checkpoint_every_steps=1), MemoryLog()
    _append(log, *_episodes(settings, 10))
    for _ in range(3):
        learner = Learner(settings, log)
        learner.turn()
        learner.close()
    assert learner.state.counts == {"trained": 8}
    assert learner.state.offsets == {PLACE: 8}
    assert learner.ledger().outcomes["episodes"] == {"trained": 8, "pending": 2}


def test_a_learner_that_waits_for_the_lease_still_starts_at_its_offsets(tmp_path: Path) -> None:
    settings, log = _settings(tmp_path, checkpoint_every_steps=1), MemoryLog()
    _append(log, *_episodes(settings, 6))
    killed = Learner(settings, log)
    killed.turn()
    learner = Learner(settings, log)  # the lease of the killed one has not ended
    learner.turn()
    assert learner.ledger().read == {"episodes": 4}
    killed.close()
    learner.turn()
    assert learner.ledger().outcomes["episodes"] == {"trained": 4, "pending": 2}
    learner.close()


def test_a_log_shorter_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    settings, log = _settings(tmp_path, checkpoint_every_steps=1), MemoryLog()
    _append(log, *_episodes(settings, 4))
    learner = Learner(settings, log)
    learner.turn()
    learner.close()
    with pytest.raises(ValueError, match=r"checkpoint\.pt: expected .* at most 0.*got 4"):
        Learner(settings, MemoryLog())


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
    settings = _settings(tmp_path, publish_every_s=1e-6, min_steps_per_version=1)
    log = OutageLog()
    _append(log, *_episodes(settings, 8))
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
    manifests = _read(log, PolicyManifest)
    assert [(m.policy_version, m.parent, m.num_steps) for m in manifests] == [(2, 1, 1), (3, 2, 2)]
    assert manifests[0].trained_offsets == {"episodes/0": 4}
    assert manifests[0].recipe_digest == "recipe-1"
    assert manifests[0].weights_digest != manifests[1].weights_digest
    restarted.close()


def test_a_manifest_announced_twice_has_one_digest(tmp_path: Path) -> None:
    settings = _settings(tmp_path, publish_every_s=1e-6, min_steps_per_version=1)
    log = MemoryLog()
    _append(log, *_episodes(settings, 4))
    learner = Learner(settings, log)
    learner.turn()
    learner.state.unpublished = True  # as if killed between the log and the checkpoint
    learner.state.parent = 1
    learner.save()
    learner.close()
    again = Learner(settings, log)
    again.turn()
    again.close()
    first, second = _read(log, PolicyManifest)
    assert (first.policy_version, first.weights_digest) == (2, second.weights_digest)
    assert second.policy_version == 2


def test_a_learner_without_its_checkpoint_never_reuses_a_version(tmp_path: Path) -> None:
    settings = _settings(tmp_path, publish_every_s=1e-6, min_steps_per_version=1)
    log = MemoryLog()
    _append(log, *_episodes(settings, 8))
    for _ in range(2):
        learner = Learner(settings, log)
        learner.turn()
        learner.close()
        settings.path(Path("learner/checkpoint.pt")).unlink()
    assert [m.policy_version for m in _read(log, PolicyManifest)] == [2, 3]


def _publish_other(settings: Settings, log: EventLog, folder: Path, version: int) -> None:
    """A version of weights that the learner did not make."""
    other = tiny_state(folder, LearnerSettings())
    other.model.load_state_dict(tiny_model(seed=version).state_dict())
    other.policy_version = version
    blobs = BlobStore(settings.path(settings.shipping.store))
    _append(log, publish(other, blobs, folder, "tok", LearnerSettings(), 0.0, {}))


def test_after_a_rollback_the_learner_goes_on_from_the_target_with_a_fresh_optimizer(
    tmp_path: Path,
) -> None:
    settings, log = _settings(tmp_path, max_numerics_gap=100.0), MemoryLog()
    for version in (2, 3):
        _publish_other(settings, log, tmp_path / f"v{version}", version)
    _append(log, make_release(policy_version=2), make_release(policy_version=3))
    _append(log, *_episodes(settings, 4))
    learner = Learner(settings, log)
    learner.state.parent = learner.state.policy_version = 3
    learner.turn()
    assert learner.state.num_steps == 1
    _append(log, make_release(policy_version=3, state="rolled_back", target_version=2))
    learner.turn()
    target = tiny_model(seed=2).state_dict()
    torch.testing.assert_close(dict(learner.state.model.state_dict()), dict(target))
    assert not learner.state.optimizer.state
    assert (learner.state.parent, learner.state.steps_since_publish) == (2, 0)
    _append(log, *_episodes(settings, 4, feedback_at=9.0))
    for record in _episodes(settings, 8)[4:]:
        _append(log, record)
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


def test_a_stopped_learner_leaves_a_checkpoint_and_a_balanced_ledger(tmp_path: Path) -> None:
    settings = _settings(tmp_path, checkpoint_every_steps=1_000)
    log = SqliteLog(settings.path(settings.log.path))
    _append(log, *_episodes(settings, 6))
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
    settings, stop = _settings(tmp_path), threading.Event()
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
