"""Releases at once, and objects that rot: pointer and log agree, and the loop goes on."""

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from shipper.process import ShipLoop
from shipper.releases import read_history
from shipper.shipping import Shipper
from shipper.store import WeightStore
from tendril.blobs import CorruptObject
from tendril.log import MemoryLog
from tendril.records import Episode, NodeStatus, PolicyManifest, Record, Release
from tests.shipper.bench import Bench, ship_next
from tests.shipper.checkpoints import publish, ship_versions, write_checkpoint
from tests.shipper.test_process import ScriptedGate, run_rounds, states


class InterruptedLog(MemoryLog):
    """Runs `before` once, just before a promotion of `version` is appended."""

    def __init__(self, version: int, before: Callable[[], None]) -> None:
        super().__init__()
        self._version, self._before = version, before

    def append(self, records: Iterable[tuple[str, Record]]) -> None:
        rows = list(records)
        for _, record in rows:
            if not isinstance(record, Release) or record.state != "promoted":
                continue
            if record.policy_version == self._version:
                self._version = -1
                self._before()
        super().append(rows)


def test_a_rollback_between_pointer_and_log_of_a_ship_leaves_both_agreeing(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "store")
    threads: list[threading.Thread] = []

    def roll_back() -> None:
        other = Shipper(store, log)
        threads.append(
            threading.Thread(target=lambda: other.rollback(2, actor="other", reason="at once"))
        )
        threads[0].start()
        threads[0].join(timeout=0.3)

    log = InterruptedLog(3, roll_back)
    ship_versions(store, log, write_checkpoint(tmp_path / "base"), up_to=3)
    threads[0].join(timeout=10)
    pointer = store.pointer()
    assert pointer is not None
    history = read_history(log)
    assert history.live == pointer.policy_version == 2
    assert [e.actor for e in history.events if e.policy_version == 3][1:] == ["test", "other"]


def test_the_running_loop_appends_what_a_killed_rollback_kept_from_the_log(tmp_path: Path) -> None:
    store, log = WeightStore(tmp_path / "store"), MemoryLog()
    ship_versions(store, log, write_checkpoint(tmp_path / "base"), up_to=2)
    loop = ShipLoop(log, Shipper(store, log), ScriptedGate("pass"), max_kept=10)
    reader = log.reader("shipper", [Release.TOPIC, PolicyManifest.TOPIC, Episode.TOPIC])
    loop.round(reader, poll_s=0.0)
    store.move_pointer(1, 2)  # and then kill -9
    for _ in range(2):
        loop.round(reader, poll_s=0.0)
    assert read_history(log).live == 1
    assert len([e for e in read_history(log).events if e.state == "rolled_back"]) == 1


class RottenGate(ScriptedGate):
    """Finds every candidate damaged."""

    def evaluate(self, *_: object) -> None:  # type: ignore[override]
        raise CorruptObject("objects/ab", "12 bytes", "11 bytes")


def test_a_damaged_candidate_is_held_with_the_reason_and_the_next_one_is_gated(
    tmp_path: Path,
) -> None:
    store, log = WeightStore(tmp_path / "store"), MemoryLog()
    ship_versions(store, log, write_checkpoint(tmp_path / "base"), up_to=1)
    publish(store, log, 2, parent=1)
    run_rounds(store, log, RottenGate("pass"))
    assert states(log, 2) == ["published", "gate_held"]
    assert "11 bytes" in read_history(log).events[-1].reason
    publish(store, log, 3, parent=1)
    run_rounds(store, log, ScriptedGate("pass"))
    assert states(log, 3)[-1] == "promoted"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.engine.stop()


def test_a_version_withdrawn_while_it_is_staged_never_serves(bench: Bench) -> None:
    shipper = bench.ship(up_to=2)
    ship_next(bench, 3)
    bench.engine.stage_may_end.clear()
    bench.engine.stage_entered.clear()
    ticking = threading.Thread(target=bench.agent.tick)
    ticking.start()
    assert bench.engine.stage_entered.wait(10)
    shipper.rollback(None, actor="test", reason="withdrawn")
    bench.engine.stage_may_end.set()
    ticking.join(10)
    assert bench.engine.num_swaps == 1
    bench.agent.tick()
    assert (bench.engine.version, bench.current) == (2, 2)


def test_a_kept_folder_with_a_damaged_tokenizer_is_fetched_again(bench: Bench) -> None:
    shipper = bench.ship(up_to=3)
    tokenizer = bench.root / "node/versions/2/tokenizer.json"
    tokenizer.write_bytes(b"rot")
    shipper.rollback(2, actor="test", reason="back")
    bench.agent.tick()
    assert bench.engine.version == 2
    assert tokenizer.read_bytes() == b""
    assert "tokenizer.json" in bench.statuses("refused")[-1].detail


def test_a_damaged_pointer_is_reported_and_the_old_version_serves(bench: Bench) -> None:
    bench.ship(up_to=2)
    pointer = bench.store.root / "pointer.json"
    whole = pointer.read_bytes()
    pointer.write_bytes(whole[:-3])
    bench.clock += 60
    for _ in range(3):
        bench.agent.tick()
    [refused] = bench.statuses("refused")
    assert "pointer.json" in refused.detail
    assert (bench.engine.version, refused.policy_version) == (2, 2)
    pointer.write_bytes(whole)
    bench.clock += 60
    bench.agent.tick()
    last: NodeStatus = bench.statuses("serving")[-1]
    assert last.policy_version == 2
