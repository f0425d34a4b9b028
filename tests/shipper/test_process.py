"""What the ship loop decides, does once, and remembers across a restart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from shipper.process import Decision, ShipLoop, decide
from shipper.releases import ReleaseHistory, read_history
from shipper.replay import ReplaySet
from shipper.shipping import Shipper
from shipper.store import WeightStore
from tendril.log import LogRecord, MemoryLog, TopicPartition
from tendril.records import Check, Episode, EvalReport, PolicyManifest, Release, encode
from tests.builders import make_episode, make_manifest, make_release
from tests.shipper.checkpoints import gate_passed, publish, write_checkpoint

BOOTSTRAPPED = make_release(policy_version=1, state="promoted")


def manifests(**parents: int) -> dict[int, PolicyManifest]:
    return {
        int(v[1:]): make_manifest(policy_version=int(v[1:]), parent=parent)
        for v, parent in parents.items()
    }


def test_only_the_newest_candidate_is_gated() -> None:
    decision = decide(ReleaseHistory([BOOTSTRAPPED]), manifests(v2=1, v3=2, v4=3))
    assert decision == Decision(hold=((2, "superseded"), (3, "superseded")), gate=4)


def test_what_was_decided_is_not_decided_again() -> None:
    held = make_release(policy_version=2, state="gate_held")
    assert decide(ReleaseHistory([BOOTSTRAPPED, held]), manifests(v2=1)) == Decision()


def test_a_version_that_passed_before_a_crash_is_shipped() -> None:
    history = ReleaseHistory([BOOTSTRAPPED, gate_passed(2, against=1)])
    assert decide(history, manifests(v2=1)) == Decision(ship=2)


def test_a_child_of_a_rolled_back_version_is_held_with_the_reason() -> None:
    back = make_release(policy_version=2, state="rolled_back", target_version=1)
    history = ReleaseHistory([BOOTSTRAPPED, make_release(policy_version=2), back])
    decision = decide(history, manifests(v2=1, v3=2, v4=3))
    assert decision.gate is None
    assert decision.hold[-1] == (4, "its parent line has rolled-back version 2")
    assert decide(history, manifests(v2=1, v5=1)).gate == 5


def test_the_replay_set_keeps_the_newest_held_out_revision() -> None:
    replay = ReplaySet(max_episodes=2)
    episodes = [
        make_episode(episode_id="a", held_out=True),
        make_episode(episode_id="train", held_out=False),
        make_episode(episode_id="unknown", held_out=True, reward=None),
        make_episode(episode_id="b", held_out=True),
        make_episode(episode_id="b2", held_out=True, supersedes="b", revision=1),
        make_episode(episode_id="c", held_out=True),
    ]
    for offset, episode in enumerate(episodes):
        replay.add(LogRecord("episodes", 0, offset, "s", encode(episode), 0.0), episode)
    assert [e.episode_id for e in replay.episodes] == ["b2", "c"]
    assert replay.safe_offsets() == {TopicPartition("episodes", 0): 4}


class ScriptedGate:
    """Gives one verdict and remembers what it was asked."""

    def __init__(self, verdict: Literal["pass", "fail", "inconclusive"]) -> None:
        self.verdict = verdict
        self.asked: list[tuple[int, int, int]] = []

    def evaluate(
        self, candidate: PolicyManifest, live_version: int, episodes: Sequence[Episode]
    ) -> EvalReport:
        self.asked.append((candidate.policy_version, live_version, len(episodes)))
        check = Check(name="reward", value=0.0, limit=0.0, num_samples=1, verdict=self.verdict)
        return EvalReport(
            policy_version=candidate.policy_version, against_version=live_version, checks=(check,)
        )


def run_rounds(store: WeightStore, log: MemoryLog, gate: ScriptedGate, num_rounds: int = 4) -> None:
    """A life of the loop: start, some rounds, end."""
    loop = ShipLoop(log, Shipper(store, log), gate, max_kept=10)
    reader = log.reader("shipper", [Release.TOPIC, PolicyManifest.TOPIC, Episode.TOPIC])
    for _ in range(num_rounds):
        loop.round(reader, poll_s=0.0)
    reader.close()


def states(log: MemoryLog, version: int) -> list[str]:
    return [e.state for e in read_history(log).events if e.policy_version == version]


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def store(tmp_path: Path, log: MemoryLog) -> WeightStore:
    store = WeightStore(tmp_path / "store")
    Shipper(store, log).bootstrap(write_checkpoint(tmp_path / "base"))
    return store


def test_a_candidate_that_passes_is_shipped_once_with_its_evidence(
    store: WeightStore, log: MemoryLog
) -> None:
    publish(store, log, 2, parent=1)
    log.append([("s", make_episode(held_out=True))])
    gate = ScriptedGate("pass")
    run_rounds(store, log, gate)
    run_rounds(store, log, gate)
    assert gate.asked == [(2, 1, 1)]
    assert states(log, 2) == ["published", "gate_passed", "promoted"]
    assert read_history(log).events[-1].evidence is not None


@pytest.mark.parametrize("verdict", ["fail", "inconclusive"])
def test_anything_but_a_pass_is_held(
    store: WeightStore, log: MemoryLog, verdict: Literal["fail", "inconclusive"]
) -> None:
    publish(store, log, 2, parent=1)
    run_rounds(store, log, ScriptedGate(verdict))
    assert states(log, 2) == ["published", "gate_held"]
    pointer = store.pointer()
    assert pointer is not None
    assert pointer.policy_version == 1
    assert read_history(log).events[-1].reason == f"reward {verdict}"


def test_a_restart_between_verdict_and_ship_ships_without_gating_again(
    store: WeightStore, log: MemoryLog
) -> None:
    publish(store, log, 2, parent=1)
    log.append([("releases", gate_passed(2, against=1))])
    gate = ScriptedGate("fail")
    run_rounds(store, log, gate)
    assert (gate.asked, read_history(log).live) == ([], 2)


def test_a_stale_pass_is_held_instead_of_shipped(store: WeightStore, log: MemoryLog) -> None:
    publish(store, log, 2, parent=1)
    log.append([("releases", gate_passed(2, against=7))])
    run_rounds(store, log, ScriptedGate("pass"))
    assert states(log, 2) == ["gate_passed", "gate_held"]


def test_held_out_episodes_survive_a_restart(store: WeightStore, log: MemoryLog) -> None:
    log.append([("s", make_episode(held_out=i % 2 == 0)) for i in range(6)])
    run_rounds(store, log, ScriptedGate("fail"))
    publish(store, log, 2, parent=1)
    gate = ScriptedGate("fail")
    run_rounds(store, log, gate)
    assert gate.asked == [(2, 1, 3)]


def test_unreadable_releases_become_dead_letters(store: WeightStore, log: MemoryLog) -> None:
    newer = make_release(policy_version=2, schema=99)
    log.append([("releases", newer)])
    run_rounds(store, log, ScriptedGate("pass"))
    assert len(log.reader("t", ["dead_letters"]).poll(10, 0.0)) == 1
    assert read_history(log).live == 1


class OneAtATime:
    """A reader that gives policies first, and a single record a poll."""

    def __init__(self, log: MemoryLog) -> None:
        self._reader = log.reader("shipper", [PolicyManifest.TOPIC, Release.TOPIC, Episode.TOPIC])
        self.commit, self.committed = self._reader.commit, self._reader.committed
        self.seek, self.close = self._reader.seek, self._reader.close
        self.assignment, self.positions = self._reader.assignment, self._reader.positions

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        return self._reader.poll(1, timeout_s)


def test_nothing_is_decided_on_half_of_the_releases(store: WeightStore, log: MemoryLog) -> None:
    publish(store, log, 2, parent=1)
    log.append([("releases", make_release(policy_version=2, state="gate_held"))])
    gate = ScriptedGate("pass")
    loop = ShipLoop(log, Shipper(store, log), gate, max_kept=10)
    reader = OneAtATime(log)
    for _ in range(8):
        loop.round(reader, poll_s=0.0)
    assert (gate.asked, states(log, 2)) == ([], ["gate_held"])
