"""A node agent on a bench: a small real HTTP engine, a store with a shipper, a clock to move."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from shipper.engine_client import EngineClient
from shipper.node_agent import NodeAgent
from shipper.shipping import Shipper
from shipper.store import WeightStore
from tendril.log import MemoryLog
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
