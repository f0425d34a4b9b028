"""Shipping, rolling back, and what is left when the process dies in between."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from shipper.releases import read_history
from shipper.shipping import Shipper, ShipRefused, find_candidate
from shipper.store import WeightStore
from tendril.log import EventLog, MemoryLog, SqliteLog
from tendril.records import EvalReport
from tendril.weights import read_weights, weights_digest, write_weights
from tests.builders import make_release
from tests.shipper.checkpoints import (
    gate_passed,
    make_tensors,
    publish,
    ship_versions,
    write_checkpoint,
)


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(tmp_path / "store")


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "base")


def live(store: WeightStore) -> int:
    pointer = store.pointer()
    assert pointer is not None
    return pointer.policy_version


def states(log: EventLog) -> list[tuple[int, str]]:
    return [(event.policy_version, event.state) for event in read_history(log).events]


def test_bootstrap_puts_version_1_into_service_once(
    store: WeightStore, log: MemoryLog, checkpoint: Path
) -> None:
    for _ in range(2):
        Shipper(store, log).bootstrap(checkpoint)
    assert live(store) == 1
    assert states(log) == [(1, "published"), (1, "promoted")]
    assert store.load_weights(1) == make_tensors(1)
    assert find_candidate(log, 1) == store.manifest(1)


def test_bootstrap_from_other_weights_is_refused(
    store: WeightStore, log: MemoryLog, checkpoint: Path, tmp_path: Path
) -> None:
    Shipper(store, log).bootstrap(checkpoint)
    other = write_checkpoint(tmp_path / "other", version=2)
    with pytest.raises(ShipRefused, match="published once"):
        Shipper(store, log).bootstrap(other)


def test_bootstrap_names_the_missing_file(
    store: WeightStore, log: MemoryLog, checkpoint: Path
) -> None:
    (checkpoint / "config.json").unlink()
    with pytest.raises(ShipRefused, match=r"config\.json"):
        Shipper(store, log).bootstrap(checkpoint)


def test_a_passed_version_ships_with_a_delta_that_rebuilds_it(
    store: WeightStore, log: MemoryLog, checkpoint: Path
) -> None:
    ship_versions(store, log, checkpoint, up_to=2)
    manifest = store.manifest(2)
    assert (live(store), read_history(log).live, manifest.base_version) == (2, 2, 1)
    assert manifest.delta is not None
    assert manifest.delta.num_bytes < manifest.snapshot[0].num_bytes / 8
    without_snapshot = msgspec.structs.replace(manifest, policy_version=9, snapshot=())
    store.write_manifest(without_snapshot)
    assert store.load_weights(9) == make_tensors(2)


def test_a_held_version_ships_only_by_force_and_the_log_says_so(
    store: WeightStore, log: MemoryLog, checkpoint: Path
) -> None:
    shipper = ship_versions(store, log, checkpoint, up_to=1)
    publish(store, log, 2, parent=1)
    log.append([("releases", make_release(policy_version=2, state="gate_held"))])
    with pytest.raises(ShipRefused, match="expected state gate_passed, got gate_held"):
        shipper.ship(2, actor="ann", reason="urgent")
    shipper.ship(2, actor="ann", reason="urgent", force=True)
    assert live(store) == 2
    assert read_history(log).events[-1].reason == "urgent (forced: was gate_held)"


def test_unknown_and_live_versions_are_refused(
    store: WeightStore, log: MemoryLog, checkpoint: Path
) -> None:
    shipper = ship_versions(store, log, checkpoint, up_to=2)
    for force in (False, True):
        with pytest.raises(ShipRefused, match="version 7 does not exist: the newest is 2") as told:
            shipper.ship(7, actor="ann", reason="", force=force)
        assert "force" not in str(told.value)
    with pytest.raises(ShipRefused, match="already live"):
        shipper.ship(2, actor="ann", reason="", force=True)


def test_a_verdict_against_a_version_that_no_longer_serves_is_refused(
    store: WeightStore, log: MemoryLog, checkpoint: Path
) -> None:
    shipper = ship_versions(store, log, checkpoint, up_to=2)
    publish(store, log, 3, parent=2)
    log.append([("releases", gate_passed(3, against=2))])
    shipper.rollback(None, actor="ann", reason="bad")
    stale = EvalReport(policy_version=3, against_version=2, checks=())
    with pytest.raises(ShipRefused, match="gated against version 2, but version 1 is live"):
        shipper.ship(3, actor="gate", reason="", evidence=stale)


def test_a_manifest_that_lies_about_its_weights_never_becomes_visible(
    store: WeightStore, log: MemoryLog, checkpoint: Path
) -> None:
    shipper = ship_versions(store, log, checkpoint, up_to=1)
    honest = publish(store, log, 2, parent=1)
    log.append([("2", msgspec.structs.replace(honest, weights_digest="0" * 64))])
    with pytest.raises(ShipRefused, match="expected weights 000"):
        shipper.ship(2, actor="ann", reason="", force=True)
    assert (live(store), store.versions()) == (1, [1])


def test_rollback_goes_to_the_previous_live_version_then_forward_again(
    store: WeightStore, log: MemoryLog, checkpoint: Path
) -> None:
    shipper = ship_versions(store, log, checkpoint, up_to=3)
    assert shipper.rollback(None, actor="ann", reason="worse") == 2
    assert (live(store), read_history(log).state_of(3)) == (2, "rolled_back")
    assert shipper.rollback(1, actor="ann", reason="worse") == 1
    shipper.ship(3, actor="ann", reason="it was fine", force=True)
    assert (live(store), read_history(log).served) == (3, (1, 3))


def test_impossible_rollbacks_are_refused(
    store: WeightStore, log: MemoryLog, checkpoint: Path
) -> None:
    shipper = ship_versions(store, log, checkpoint, up_to=2)
    with pytest.raises(ShipRefused, match="already live"):
        shipper.rollback(2, actor="ann", reason="")
    with pytest.raises(ShipRefused, match="version 5 does not exist: the newest is 2"):
        shipper.rollback(5, actor="ann", reason="")
    publish(store, log, 3, parent=2)
    with pytest.raises(ShipRefused, match=r"expected one of \[1\]; to go forward, ship it"):
        shipper.rollback(3, actor="ann", reason="")
    shipper.rollback(1, actor="ann", reason="")
    with pytest.raises(ShipRefused, match="no version before it"):
        shipper.rollback(None, actor="ann", reason="")


def test_a_rollback_lost_by_the_log_is_appended_later(
    store: WeightStore, log: MemoryLog, checkpoint: Path
) -> None:
    shipper = ship_versions(store, log, checkpoint, up_to=2)
    pointer = store.pointer()
    assert pointer is not None
    store.move_pointer(1, pointer.generation)
    history = shipper.reconcile()
    assert (history.live, history.state_of(2)) == (1, "rolled_back")


CRASH = """
import os, sys
from pathlib import Path
from shipper.shipping import Shipper
from shipper.store import WeightStore
from tendril.log import SqliteLog

root, place, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

class Deadly:
    def __init__(self, inner): self.inner = inner
    def __getattr__(self, name):
        found = getattr(self.inner, name)
        if name == "blobs": return Deadly(found)
        if name != place: return found
        def call(*args):
            if when == "after": found(*args)
            os._exit(9)
        return call

store, log = WeightStore(root / "store"), SqliteLog(root / "log.db")
Shipper(Deadly(store), Deadly(log)).ship(2, actor="gate", reason="passed")
"""


@pytest.mark.parametrize(
    ("place", "when"),
    [
        ("put", "before"),
        ("put", "after"),
        ("write_manifest", "after"),
        ("move_pointer", "after"),
        ("append", "after"),
    ],
)
def test_a_ship_killed_anywhere_converges(
    store: WeightStore, checkpoint: Path, tmp_path: Path, place: str, when: str
) -> None:
    log = SqliteLog(tmp_path / "log.db")
    ship_versions(store, log, checkpoint, up_to=1)
    publish(store, log, 2, parent=1)
    log.append([("releases", gate_passed(2, against=1))])
    command = [sys.executable, "-c", CRASH, str(tmp_path), place, when]
    root = Path(__file__).parents[2]
    assert subprocess.run(command, cwd=root, timeout=30, check=False).returncode == 9

    shipper = Shipper(store, log)
    if shipper.reconcile().live == 1:
        assert live(store) == 1
        shipper.ship(2, actor="gate", reason="passed")
    assert (live(store), states(log).count((2, "promoted"))) == (2, 1)
    assert weights_digest(store.load_weights(2)) == store.manifest(2).weights_digest
    log.close()


def test_a_checkpoint_that_no_version_could_follow_is_refused_with_the_cure(tmp_path: Path):
    folder = write_checkpoint(tmp_path / "base")
    path = folder / "model.safetensors"
    tensors = read_weights(path)
    write_weights(path, {name: t._replace(dtype="F16") for name, t in tensors.items()})
    with pytest.raises(ShipRefused, match=r"expected BF16 .* got F16; convert it"):
        Shipper(WeightStore(tmp_path / "store"), MemoryLog()).bootstrap(folder)
