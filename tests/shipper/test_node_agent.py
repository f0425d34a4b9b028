"""The node agent against a small real HTTP engine: what is staged, refused, kept and reported."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shipper.engine_client import EngineClient
from shipper.node_agent import NodeAgent
from shipper.shipping import Shipper
from shipper.store import WeightStore
from tendril.log import MemoryLog, SqliteLog
from tendril.records import NodeStatus, decode
from tendril.settings import ShippingSettings
from tendril.weights import read_weights, weights_digest
from tests.shipper.checkpoints import gate_passed, publish, ship_versions, write_checkpoint


class FakeEngine:
    """Loads weights for real and counts; `broken` names routes that answer 500."""

    def __init__(self, checkpoint: Path) -> None:
        self.version, self.digest = 1, digest_of(checkpoint)
        self.staged: dict[int, str] = {}
        self.num_swaps = 0
        self.broken: set[str] = set()
        self.stage_entered, self.stage_may_end = threading.Event(), threading.Event()
        self.stage_may_end.set()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(200, {"policy_version": engine.version, "weights_digest": engine.digest,
                                  "num_running": 3, "num_waiting": 0})  # fmt: skip

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path in engine.broken:
                    self.answer(500, {"error": "broken"})
                else:
                    self.answer(200, engine.post(self.path, body))

            def answer(self, status: int, reply: dict[str, Any]) -> None:
                data = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

            def log_error(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # killed clients
        self.port = int(self.server.server_address[1])
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        version = body["policy_version"]
        if path == "/admin/stage":
            self.stage_entered.set()
            self.stage_may_end.wait(20)
            self.staged[version] = digest_of(Path(body["folder"]))
            return {"weights_digest": self.staged[version]}
        self.version, self.digest = version, self.staged[version]
        self.num_swaps += 1
        return {"policy_version": version, "weights_digest": self.digest, "pause_ms": 1.5}

    def stop(self) -> None:
        self.stage_may_end.set()
        self.server.shutdown()
        self.server.server_close()


def digest_of(folder: Path) -> str:
    return weights_digest(read_weights(folder / "model.safetensors"))


class Bench:
    """A store with a shipper, an engine on version 1 and an agent whose clock tests move."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, MemoryLog()
        self.store = WeightStore(root / "store")
        self.checkpoint = write_checkpoint(root / "base")
        self.engine = FakeEngine(self.checkpoint)
        self.clock = 1_000.0
        self.agent = self.start_agent()

    def start_agent(self, keep_versions: int = 4) -> NodeAgent:
        return NodeAgent(
            self.store,
            self.log,
            EngineClient(f"http://127.0.0.1:{self.engine.port}", timeout_s=2.0),
            self.root / "node",
            ShippingSettings(keep_versions=keep_versions),
            now=lambda: self.clock,
        )

    def ship(self, up_to: int) -> Shipper:
        """Bring the node to version 1 and ship the rest, a tick after each version."""
        shipper = ship_versions(self.store, self.log, self.checkpoint, up_to=1)
        self.agent.tick()
        for version in range(2, up_to + 1):
            shipper = ship_next(self, version)
            self.agent.tick()
        return shipper

    def statuses(self, state: str) -> list[NodeStatus]:
        reader = self.log.reader("test", [NodeStatus.TOPIC])
        found = [decode(NodeStatus, record.value) for record in reader.poll(1_000, 0.0)]
        reader.close()
        return [status for status in found if status.state == state]

    def swaps(self) -> list[NodeStatus]:
        return [s for s in self.statuses("serving") if s.swap_pause_ms is not None]

    @property
    def current(self) -> int:
        return int(json.loads((self.root / "node/current.json").read_text())["policy_version"])

    @property
    def kept(self) -> list[int]:
        return sorted(int(path.name) for path in (self.root / "node/versions").iterdir())


def ship_next(bench: Bench, version: int) -> Shipper:
    shipper = Shipper(bench.store, bench.log)
    publish(bench.store, bench.log, version, parent=version - 1)
    bench.log.append([("releases", gate_passed(version, version - 1))])
    shipper.ship(version, actor="test", reason="passed")
    return shipper


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.engine.stop()


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


AGENT = """
import sys, threading
from pathlib import Path
from shipper.agent_process import run
from tendril.settings import ServingSettings, Settings

run(Settings(workspace=Path(sys.argv[1]), serving=ServingSettings(admin_port=int(sys.argv[2]))),
    threading.Event())
"""


def start_agent_process(bench: Bench) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", AGENT, str(bench.root), str(bench.engine.port)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 s in vain"
        time.sleep(0.02)


def test_an_agent_killed_in_the_middle_of_staging_converges(bench: Bench) -> None:
    log = SqliteLog(bench.root / "log.db")
    ship_versions(bench.store, log, bench.checkpoint, up_to=2)
    bench.engine.stage_may_end.clear()
    first = start_agent_process(bench)
    assert bench.engine.stage_entered.wait(20)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert bench.engine.version == 1

    (bench.root / "node-1/versions/.2.killed.part").mkdir()
    bench.engine.stage_may_end.set()
    second = start_agent_process(bench)
    try:
        current = bench.root / "node-1/current.json"
        wait_for(lambda: current.exists() and b"2" in current.read_bytes())
    finally:
        second.kill()
        second.wait()
        log.close()
    assert bench.engine.digest == bench.store.manifest(2).weights_digest
    assert [p.name for p in (bench.root / "node-1/versions").iterdir()] == ["2"]
