"""Two replicas that share a workspace, each with its agent, behind one gateway: real processes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from dashboards.follower import LoopFollower
from dashboards.loop_view import LoopView
from dashboards.snapshot import LoopSnapshot
from shipper.shipping import Shipper
from shipper.store import WeightStore
from tendril.log import SqliteLog
from tendril.model_folder import tokenizer_digest, version_files
from tendril.records import Feedback, Record, Trace, decode
from tendril.weights import read_weights, weights_digest
from tests.builders import make_manifest
from tests.serving.live_server import free_port, make_event
from tests.serving.small_model import write_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PATIENCE_S = 60
NODES = ("node-1", "node-2")
NUM_USERS = 8


class Deployment:
    """The processes of one workspace; what differs between replicas is in `node_environment`."""

    def __init__(self, workspace: Path, checkpoint: Path) -> None:
        self.workspace = workspace
        self.ports = {node: (free_port(), free_port()) for node in NODES}
        replicas = ", ".join(
            f'{{"url": "http://127.0.0.1:{port}"}}' for port, _ in self.ports.values()
        )
        self.common = {
            "OMP_NUM_THREADS": "1",
            "TENDRIL_WORKSPACE": str(workspace),
            "TENDRIL_SERVING__CHECKPOINT": str(checkpoint),
            "TENDRIL_SERVING__MAX_CONTEXT_TOKENS": "128",
            "TENDRIL_GATEWAY__PORT": str(free_port()),
            "TENDRIL_GATEWAY__REPLICAS": f"[{replicas}]",
            "TENDRIL_GATEWAY__POLL_INTERVAL_S": "0.1",
        }
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.common['TENDRIL_GATEWAY__PORT']}",
            timeout=20,
        )
        self.log = SqliteLog(workspace / "log.db")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def node_environment(self, node: str) -> dict[str, str]:
        port, admin_port = self.ports[node]
        return {
            "TENDRIL_SERVING__PORT": str(port),
            "TENDRIL_SERVING__ADMIN_PORT": str(admin_port),
            "TENDRIL_SERVING__FOLDER": f"serving-{node}",
            "TENDRIL_SHIPPING__NODE": node,
            "TENDRIL_SHIPPING__NODE_FOLDER": node,
        }

    def start(self, command: str, node: str = "") -> None:
        about = self.node_environment(node) if node else {}
        self.processes[command + node] = subprocess.Popen(
            [sys.executable, "-m", "tendril.cli", command],
            cwd=Path(__file__).parents[2],
            env=os.environ | self.common | about,
        )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def num_ready(self) -> int:
        try:
            ready: int = self.http.get("/health").json()["ready_replicas"]["live"]
            return ready
        except httpx.TransportError:
            return 0

    def log_in(self) -> None:
        """With the key that the processes, all started at once, agreed on."""
        key = (self.workspace / "api_key").read_text()
        self.http.headers["authorization"] = f"Bearer {key}"

    def stop(self) -> list[int]:
        """Statuses that the processes end with."""
        for process in self.processes.values():
            process.terminate()
        return [process.wait(timeout=PATIENCE_S) for process in self.processes.values()]

    def snapshot(self) -> LoopSnapshot:
        follower = LoopFollower(self.log, LoopView())
        while follower.poll(0.0):
            pass
        follower.close()
        return follower.snapshot()

    def records(self, record_type: type[Record]) -> list[Record]:
        reader = self.log.reader("test", [record_type.TOPIC])
        found = [decode(record_type, row.value) for row in reader.poll(100_000, 0.0)]
        reader.close()
        return found


class Users:
    """People who ask until the block ends; each reply must be a good one."""

    def __init__(self, http: httpx.Client) -> None:
        self.replies: list[httpx.Response] = []
        self._http, self._stop = http, threading.Event()

    def ask(self, user: int) -> None:
        body = {"model": "tendril", "prompt": "def a", "max_tokens": 8}
        while not self._stop.is_set():
            body["user"] = f"user {user}, {len(self.replies)}"
            reply = self._http.post("/v1/completions", json=body)
            assert reply.status_code == 200, reply.text
            self.replies.append(reply)

    def versions(self) -> set[str]:
        return {reply.headers["x-tendril-policy-version"] for reply in self.replies}

    def __enter__(self) -> "Users":
        self._pool = ThreadPoolExecutor(NUM_USERS)
        self._asking = [self._pool.submit(self.ask, user) for user in range(NUM_USERS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        for asking in self._asking:
            asking.result()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s in vain"
        time.sleep(0.1)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path / "workspace", write_model(tmp_path / "v1", seed=1))
    yield deployment
    for name in list(deployment.processes):
        deployment.kill(name)
    deployment.http.close()
    deployment.log.close()


def ship(deployment: Deployment, folder: Path) -> None:
    """Make `folder` version 2 and put it into service."""
    store = WeightStore(deployment.workspace / "store")
    manifest = make_manifest(
        snapshot=tuple(store.blobs.put_file(name, folder / name) for name in version_files(folder)),
        parent=1,
        weights_digest=weights_digest(read_weights(folder / "model.safetensors")),
        tokenizer_digest=tokenizer_digest(folder),
    )
    deployment.log.append([("2", manifest)])
    Shipper(store, deployment.log).ship(2, actor="test", reason="test", force=True)


def test_two_replicas_share_a_workspace_and_one_that_is_killed_harms_nobody(
    deployment: Deployment, tmp_path: Path
) -> None:
    store = WeightStore(deployment.workspace / "store")
    Shipper(store, deployment.log).bootstrap(tmp_path / "v1")
    for node in NODES:
        deployment.start("serve", node)
        deployment.start("agent", node)
    deployment.start("gateway")
    until(lambda: deployment.num_ready() == 2)
    deployment.log_in()

    with Users(deployment.http) as users:
        until(lambda: len(users.replies) > 50)
        ship(deployment, write_model(tmp_path / "v2", seed=2))
        until(lambda: {n.policy_version for n in deployment.snapshot().nodes} == {2})
        deployment.kill("servenode-1")
        num_before = len(users.replies)
        until(lambda: len(users.replies) > num_before + 50)
        deployment.start("serve", "node-1")
        until(lambda: deployment.num_ready() == 2)
    assert users.versions() == {"1", "2"}
    for reply in users.replies:
        event = make_event(reply.headers["x-tendril-trace-id"])
        told = deployment.http.post(reply.headers["x-tendril-feedback-url"], json=event)
        assert told.json()["status"] == "accepted"
    assert deployment.stop() == [0] * 5

    logged = {r.trace_id for r in deployment.records(Trace) if isinstance(r, Trace)}
    assert {reply.headers["x-tendril-trace-id"] for reply in users.replies} <= logged
    told_of = {r.trace_id for r in deployment.records(Feedback) if isinstance(r, Feedback)}
    assert len(told_of) == len(users.replies)
    loop = deployment.snapshot()
    assert [(n.node, n.policy_version) for n in loop.nodes] == [("node-1", 2), ("node-2", 2)]
    assert loop.swap_pause_ms.num == 2
    ledgers = {line.node: line for line in loop.ledger if line.kind == "traces"}
    assert all(line.balanced and line.outcomes["logged"] > 20 for line in ledgers.values())
    assert sum(ledgers[node].outcomes["logged"] for node in NODES) == len(logged)
