"""The store: versions are written once, the pointer has one winner, weights are verified."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shipper.delta import encode_delta
from shipper.store import Pointer, PointerMoved, UnknownVersion, VersionExists, WeightStore
from tendril.blobs import CorruptObject
from tendril.records import PolicyManifest
from tendril.weights import TensorBytes, encode_weights, weights_digest
from tests.builders import make_manifest

PROJECT = Path(__file__).parents[2]

KILLED_AT_EVERY_LINE = """
import json, os, shutil, signal, sys
from pathlib import Path
from shipper import store as store_module
from tendril import blobs, files
from tests.shipper.test_store import make_version, publish_second
from shipper.store import WeightStore

TRACED = {store_module.__file__, blobs.__file__, files.__file__}

def kill_at(line_number):
    seen = 0
    def trace(frame, event, arg):
        nonlocal seen
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            seen += 1
            if seen == line_number:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    return trace

first, outcomes = WeightStore(Path(sys.argv[1]) / "first"), []
first.write_manifest(make_version(first, 1))
first.move_pointer(1, None)
for line_number in range(1, 1000, int(sys.argv[2])):
    store = WeightStore(Path(sys.argv[1]) / str(line_number))
    shutil.copytree(first.root, store.root)
    child = os.fork()
    if not child:
        sys.settrace(kill_at(line_number))
        publish_second(store)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    pointer = store.pointer()
    store.load_weights(pointer.policy_version)
    outcomes.append([pointer.policy_version, pointer.generation, store.versions()])
    if not os.WIFSIGNALED(status):
        break
    if pointer.policy_version == 1:
        publish_second(store)
    assert (store.pointer().policy_version, store.pointer().generation) == (2, 2)
    store.load_weights(2)
    shutil.rmtree(store.root)
print(json.dumps(outcomes))
"""

RACING = """
import sys
from pathlib import Path
from shipper.store import PointerMoved, WeightStore

store, wins = WeightStore(Path(sys.argv[1])), 0
print("ready", flush=True)
sys.stdin.readline()
for generation in range(1, 101):
    try:
        store.move_pointer(1, generation)
        wins += 1
    except PointerMoved:
        pass
print(wins)
"""


def _weights(version: int) -> dict[str, TensorBytes]:
    return {"w": TensorBytes("BF16", (3,), bytes([version] * 6))}


def make_version(store: WeightStore, version: int, **overrides: Any) -> PolicyManifest:
    """A manifest whose snapshot is in the store."""
    weights = _weights(version)
    fields: dict[str, Any] = {
        "policy_version": version,
        "parent": version - 1 or None,
        "snapshot": (
            store.blobs.put("model.safetensors", encode_weights(weights)),
            store.blobs.put("config.json", b"{}"),
        ),
        "weights_digest": weights_digest(weights),
    }
    return make_manifest(**(fields | overrides))


def make_delta_version(store: WeightStore, version: int, **overrides: Any) -> PolicyManifest:
    """A manifest that has a delta from the version before it, and no snapshot."""
    delta = store.blobs.put("delta", encode_delta(_weights(version - 1), _weights(version)))
    fields = {"base_version": version - 1, "delta": delta, "snapshot": ()}
    return make_version(store, version, **(fields | overrides))


def publish_second(store: WeightStore) -> None:
    store.write_manifest(make_version(store, 2))
    store.move_pointer(2, 1)


def test_a_published_version_is_found_again(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    assert store.versions() == []
    manifests = [make_version(store, version) for version in (10, 9)]
    for manifest in manifests:
        store.write_manifest(manifest)
    assert store.versions() == [9, 10]
    assert WeightStore(tmp_path).manifest(10) == manifests[0]
    with pytest.raises(UnknownVersion, match=r"version 3: expected one of \[9, 10\]"):
        store.manifest(3)


def test_a_version_is_written_once(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    manifest = make_version(store, 2)
    store.write_manifest(manifest)
    store.write_manifest(manifest)  # again after a crash: nothing to do
    with pytest.raises(VersionExists, match="version 2"):
        store.write_manifest(msgspec.structs.replace(manifest, num_steps=7))
    assert store.manifest(2) == manifest


def test_the_pointer_moves_by_compare_and_swap(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    for version in (1, 2):
        store.write_manifest(make_version(store, version))
    assert store.pointer() is None
    with pytest.raises(PointerMoved, match="expected generation 1, got None"):
        store.move_pointer(1, 1)
    assert store.move_pointer(1, None) == Pointer(1, 1)
    assert store.move_pointer(2, 1) == Pointer(2, 2)
    for stale in (None, 1, 3):
        with pytest.raises(PointerMoved, match=f"expected generation {stale}, got 2 at version 2"):
            store.move_pointer(1, stale)
    with pytest.raises(UnknownVersion):
        store.move_pointer(3, 2)
    assert store.move_pointer(1, 2) == Pointer(1, 3)  # back to an older version
    assert WeightStore(tmp_path).pointer() == Pointer(1, 3)


def test_weights_come_from_the_snapshot_or_through_deltas(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    store.write_manifest(make_version(store, 1))
    for version in (2, 3):
        store.write_manifest(make_delta_version(store, version))
    with_both = make_delta_version(store, 4, snapshot=make_version(store, 4).snapshot)
    store.write_manifest(with_both)
    for version in (1, 2, 3, 4):
        assert store.load_weights(version) == _weights(version)
    (tmp_path / with_both.snapshot[0].key).unlink()  # collected as garbage
    assert store.load_weights(4) == _weights(4)


def test_weights_other_than_the_manifests_are_refused(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    store.write_manifest(make_version(store, 1))
    store.write_manifest(make_version(store, 2, weights_digest="ab"))
    store.write_manifest(make_delta_version(store, 3, base_version=1))
    with pytest.raises(CorruptObject, match="weights of version 2: expected digest ab"):
        store.load_weights(2)
    with pytest.raises(ValueError, match="base weights: expected digest"):
        store.load_weights(3)


@pytest.mark.parametrize("base_version", [None, 2, 3])
def test_a_version_without_a_way_to_its_weights_is_refused(
    tmp_path: Path, base_version: int | None
) -> None:
    store = WeightStore(tmp_path)
    store.write_manifest(make_delta_version(store, 2, base_version=base_version))
    with pytest.raises(CorruptObject, match="a delta and an older base"):
        store.load_weights(2)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    store.write_manifest(make_version(store, 1))
    store.move_pointer(1, None)
    (tmp_path / "pointer.json").write_bytes(b'{"policy_version":')
    with pytest.raises(CorruptObject, match=r"pointer\.json"):
        store.pointer()
    manifest = tmp_path / "versions" / "1.json"
    whole = manifest.read_bytes()
    for damaged in (whole[:-5], b"", b"\xff", whole.replace(b'"schema":1', b'"schema":2')):
        manifest.write_bytes(damaged)
        with pytest.raises(CorruptObject, match=r"1\.json"):
            store.manifest(1)
    (tmp_path / "versions" / "2.json").write_bytes(whole)
    with pytest.raises(CorruptObject, match=r"expected version 2 .* got version 1"):
        store.manifest(2)


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_publisher_killed_at_any_line_leaves_a_whole_version_serving(
    tmp_path: Path, stride: int
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EVERY_LINE, str(tmp_path), str(stride)],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    outcomes = json.loads(ended.stdout)
    assert len(outcomes) > 100 / stride
    stages = [[1, 1, [1]], [1, 1, [1, 2]], [2, 2, [1, 2]]]  # manifest, then pointer
    assert outcomes == sorted(outcomes, key=stages.index)
    assert outcomes[0] == stages[0]
    assert outcomes[-1] == stages[-1]


@pytest.mark.slow
def test_of_two_processes_that_move_the_pointer_exactly_one_wins_each_time(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    store.write_manifest(make_version(store, 1))
    store.move_pointer(1, None)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACING, str(tmp_path)],
            cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    wins = [int(racer.communicate("go\n", timeout=60)[0]) for racer in racers]
    assert sum(wins) == 100
    assert store.pointer() == Pointer(1, 101)
