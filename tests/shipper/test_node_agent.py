"""The node agent: what is staged, refused, kept and reported."""

import shutil
from pathlib import Path

import pytest

from tests.shipper.bench import Bench, digest_of, ship_next
from tests.shipper.checkpoints import ship_versions, write_checkpoint


def test_the_first_version_is_kept_without_a_swap(bench: Bench) -> None:
    bench.ship(up_to=1)
    assert (bench.current, bench.kept, bench.engine.num_swaps) == (1, [1], 0)
    assert bench.statuses("serving")[0].num_running == 3


def test_a_new_version_comes_as_a_delta_and_is_acknowledged(bench: Bench) -> None:
    bench.ship(up_to=2)
    [swap] = bench.swaps()
    delta = bench.store.manifest(2).delta
    assert delta is not None
    assert (bench.engine.version, bench.current, swap.policy_version) == (2, 2, 2)
    assert (swap.used_delta, swap.fetched_bytes) == (True, delta.num_bytes)
    assert swap.full_bytes == bench.store.manifest(2).snapshot[0].num_bytes
    assert bench.engine.digest == bench.store.manifest(2).weights_digest == swap.weights_digest


def test_a_torn_delta_is_refused_and_the_snapshot_serves(bench: Bench) -> None:
    bench.ship(up_to=1)
    ship_next(bench, 2)
    delta = bench.store.manifest(2).delta
    assert delta is not None
    path = bench.store.root / delta.key
    path.write_bytes(path.read_bytes()[:-3])
    bench.agent.tick()
    [refusal] = bench.statuses("refused")
    assert (refusal.policy_version, refusal.detail.split(":")[0]) == (1, "delta")
    assert [(s.policy_version, s.used_delta) for s in bench.swaps()] == [(2, False)]


def test_a_version_without_a_good_source_is_refused_and_the_old_one_serves(bench: Bench) -> None:
    bench.ship(up_to=1)
    shipper = ship_next(bench, 2)
    manifest = bench.store.manifest(2)
    for file in (manifest.delta, manifest.snapshot[0]):
        assert file is not None
        (bench.store.root / file.key).write_bytes(b"torn")
    bench.agent.tick()
    assert (bench.engine.version, bench.current, bench.engine.num_swaps) == (1, 1, 0)
    assert bench.statuses("refused")[-1].policy_version == 1

    num_refusals = len(bench.statuses("refused"))
    bench.agent.tick()
    assert len(bench.statuses("refused")) == num_refusals, "backs off"
    bench.clock += 60
    bench.agent.tick()
    assert len(bench.statuses("refused")) > num_refusals, "tries again"

    shipper.rollback(None, actor="ann", reason="cannot be served")
    bench.agent.tick()
    assert bench.statuses("serving")[-1].policy_version == 1
    ship_next(bench, 3)
    bench.agent.tick()
    assert bench.engine.version == 3


def test_a_wrong_base_is_refused_and_the_snapshot_serves(bench: Bench) -> None:
    bench.ship(up_to=1)
    ship_next(bench, 2)
    other = write_checkpoint(bench.root / "other", version=9)
    shutil.copy(other / "model.safetensors", bench.root / "node/versions/1/model.safetensors")
    bench.agent.tick()
    assert "expected weights" in bench.statuses("refused")[0].detail
    assert [s.used_delta for s in bench.swaps()] == [False]


def test_a_rollback_fetches_nothing(bench: Bench) -> None:
    shipper = bench.ship(up_to=3)
    shipper.rollback(None, actor="ann", reason="worse")
    bench.agent.tick()
    swap = bench.swaps()[-1]
    assert (swap.policy_version, swap.fetched_bytes, bench.engine.version) == (2, 0, 2)


def test_a_kept_folder_that_rotted_is_fetched_again(bench: Bench) -> None:
    shipper = bench.ship(up_to=3)
    (bench.root / "node/versions/2/model.safetensors").write_bytes(b"rot")
    shipper.rollback(None, actor="ann", reason="worse")
    bench.agent.tick()
    assert (bench.engine.version, bench.swaps()[-1].used_delta) == (2, False)
    assert digest_of(bench.root / "node/versions/2") == bench.store.manifest(2).weights_digest


@pytest.mark.parametrize("route", ["/admin/stage", "/admin/swap"])
def test_an_engine_error_leaves_the_old_version_until_it_works_again(
    bench: Bench, route: str
) -> None:
    bench.ship(up_to=1)
    ship_next(bench, 2)
    bench.engine.broken.add(route)
    bench.agent.tick()
    assert (bench.engine.version, bench.current) == (1, 1)
    assert f"{route}: expected 200, got 500" in bench.statuses("refused")[-1].detail
    bench.engine.broken.clear()
    bench.clock += 1
    bench.agent.tick()
    assert (bench.engine.version, bench.current) == (2, 2)


def test_an_unwritable_folder_is_refused_and_the_old_version_serves(bench: Bench) -> None:
    bench.ship(up_to=1)
    ship_next(bench, 2)
    versions = bench.root / "node/versions"
    shutil.move(versions, bench.root / "moved")
    versions.write_bytes(b"a file where a folder must be: no folder can be made below it")
    bench.agent.tick()
    assert bench.engine.version == 1
    assert str(versions) in bench.statuses("refused")[-1].detail
    versions.unlink()
    shutil.move(bench.root / "moved", versions)
    bench.clock += 1
    bench.agent.tick()
    assert bench.engine.version == 2


def test_an_engine_that_restarts_on_another_version_is_brought_back(bench: Bench) -> None:
    bench.ship(up_to=3)
    bench.engine.version, bench.engine.digest = 1, digest_of(bench.checkpoint)
    bench.agent.tick()
    assert (bench.engine.version, bench.swaps()[-1].fetched_bytes) == (3, 0)


def test_a_right_label_on_wrong_weights_is_found_by_digest(bench: Bench) -> None:
    bench.ship(up_to=2)
    bench.engine.digest = "something else"
    bench.agent.tick()
    assert bench.engine.digest == bench.store.manifest(2).weights_digest


def test_without_an_engine_the_agent_waits(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ship_versions(bench.store, bench.log, bench.checkpoint, up_to=2)
    bench.engine.stop()
    bench.agent.tick()
    assert bench.statuses("serving") == bench.statuses("refused") == []


def test_old_versions_go_but_never_the_live_or_the_previous_one(bench: Bench) -> None:
    bench.agent = bench.start_agent(keep_versions=2)
    shipper = bench.ship(up_to=5)
    assert bench.kept == [4, 5]
    shipper.rollback(2, actor="ann", reason="back to a good one")
    bench.agent.tick()
    assert bench.current == 2
    assert bench.kept == [2, 4, 5]


def test_heartbeats_come_every_two_seconds(bench: Bench) -> None:
    bench.ship(up_to=1)
    for _ in range(5):
        bench.agent.tick()
        bench.clock += 1
    assert len(bench.statuses("serving")) == 3
