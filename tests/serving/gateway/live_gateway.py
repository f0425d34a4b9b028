"""A gateway process in a thread of the test, on a free port."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from serving.gateway.process import run
from tendril.settings import (
    AccessSettings,
    GatewaySettings,
    ReplicaSettings,
    ServingSettings,
    Settings,
)
from tests.serving.gateway.stub_replica import StubReplica
from tests.serving.live_server import free_port, in_a_thread

KEY = "tk-gateway-test"
CHAT = "/v1/chat/completions"


def make_settings(workspace: Path, *stubs: StubReplica, **gateway: Any) -> Settings:
    """Stubs named `canary...` form the canary group."""
    fields: dict[str, Any] = {
        "port": free_port(),
        "replicas": tuple(
            ReplicaSettings(url=s.url, group="canary" if s.name.startswith("canary") else "live")
            for s in stubs
        ),
        "poll_interval_s": 0.05,
        "drain_notice_s": 0,
        "drain_s": 3,
        "body_timeout_s": 2.0,
    }
    access = gateway.pop("access", AccessSettings())
    keys, origins = gateway.pop("api_keys", (KEY,)), gateway.pop("cors_origins", ())
    return Settings(
        workspace=workspace,
        access=access,
        serving=ServingSettings(api_keys=keys, cors_origins=origins),
        gateway=GatewaySettings(**(fields | gateway)),
    )


class LiveGateway:
    """The process, and a client of it."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self.settings, self.stop = settings, stop
        self.port = settings.gateway.port
        scheme = "https" if settings.access.tls_certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.http = httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {KEY}"}, timeout=20, verify=False
        )

    def chat(self, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        message = {"model": "tendril", "messages": [{"role": "user", "content": "hello"}]}
        return self.http.post(CHAT, json=message | body, headers=headers)


@contextlib.contextmanager
def gateway(settings: Settings, *, wait_ready: bool = True) -> Iterator[LiveGateway]:
    """Run the process until the block ends."""
    stop = threading.Event()
    live = LiveGateway(settings, stop)
    try:
        with in_a_thread(run, settings, stop) as failure:
            until(lambda: _is_up(live, failure, wait_ready), pause_s=0.02)
            yield live
    finally:
        live.http.close()


def _is_up(live: LiveGateway, failure: list[BaseException], wait_ready: bool) -> bool:
    assert not failure, failure
    try:
        return live.http.get("/ready").status_code == 200 or not wait_ready
    except httpx.TransportError:
        return False


def until(condition: Callable[[], object], timeout_s: float = 10, pause_s: float = 0.01) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(pause_s)
