"""A serving process on free ports, in a thread of the test, and what it left on the log."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx

from serving.process import run
from tendril.log import open_log
from tendril.records import Feedback, Ledger, Record, Trace, decode
from tendril.settings import ServingSettings, Settings

KEY = "tk-test"
R = TypeVar("R", bound=Record)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def make_settings(workspace: Path, checkpoint: Path, **serving: Any) -> Settings:
    fields: dict[str, Any] = {
        "checkpoint": checkpoint,
        "port": free_port(),
        "admin_port": free_port(),
        "max_context_tokens": 128,
        "max_body_bytes": 64_000,
        "api_keys": (KEY, "schlüssel"),
        "explore_share": 0.5,
        "seed": 0,
    }
    return Settings(workspace=workspace, serving=ServingSettings(**(fields | serving)))


class LiveServer:
    """The process, and clients of it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.url = f"http://127.0.0.1:{settings.serving.port}"
        self.http = httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {KEY}"}, timeout=20
        )
        self.admin = httpx.Client(
            base_url=f"http://127.0.0.1:{settings.serving.admin_port}", timeout=20
        )

    def complete(self, **overrides: Any) -> httpx.Response:
        """A completion of twelve greedy tokens."""
        body = {"model": "tendril", "prompt": "def a", "max_tokens": 12, "temperature": 0}
        return self.http.post("/v1/completions", json=body | overrides)

    def report(self, reply: httpx.Response, **overrides: Any) -> httpx.Response:
        """An acceptance of that reply, by its feedback URL."""
        event = make_event(reply.headers["x-tendril-trace-id"], **overrides)
        return httpx.post(self.url + reply.headers["x-tendril-feedback-url"], json=event)

    def records(self, record_type: type[R]) -> list[R]:
        """All of one kind that reached the log."""
        log = open_log(self.settings)
        reader = log.reader(f"test-{time.monotonic_ns()}", [record_type.TOPIC])
        found = [decode(record_type, record.value) for record in reader.poll(100_000, 0)]
        reader.close()
        log.close()
        return found

    def trace(self, trace_id: str, timeout_s: float = 5.0) -> Trace:
        """The trace of that id, once it is on the log."""
        deadline = time.monotonic() + timeout_s
        while True:
            for trace in self.records(Trace):
                if trace.trace_id == trace_id:
                    return trace
            assert time.monotonic() < deadline, f"no trace {trace_id}"
            time.sleep(0.02)

    def settled(self) -> set[str]:
        """Ids of all traces up to now: nothing runs, and what ran before is on the log."""
        self.wait_idle(30)
        self.trace(self.complete().headers["x-tendril-trace-id"])
        return {trace.trace_id for trace in self.records(Trace)}

    def wait_idle(self, timeout_s: float = 5.0) -> None:
        deadline = time.monotonic() + timeout_s
        while (stats := self.admin.get("/admin/status").json()) and (
            stats["num_running"] or stats["num_waiting"]
        ):
            assert time.monotonic() < deadline, stats
            time.sleep(0.01)


def post_json(server: LiveServer, path: str, body: Any) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return server.http.post(path, content=json.dumps(body), headers=headers)


def make_event(trace_id: str, **overrides: Any) -> dict[str, Any]:
    return {
        "event_id": f"e-{trace_id}",
        "trace_id": trace_id,
        "type": "suggestion.accepted",
        "client_seq": 1,
        "client_time": 1_000.0,
    } | overrides


def stream_body(**overrides: Any) -> dict[str, Any]:
    """A long streamed completion."""
    return {
        "model": "tendril", "prompt": "def a", "max_tokens": 110, "temperature": 0, "stream": True,
    } | overrides  # fmt: skip


@contextlib.contextmanager
def in_a_thread(
    run: Callable[[Settings, threading.Event], None], settings: Settings, stop: threading.Event
) -> Iterator[list[BaseException]]:
    """A process's `run` until the block ends; the list has what it raised, which then fails."""
    failure: list[BaseException] = []

    def work() -> None:
        try:
            run(settings, stop)
        except BaseException as error:  # noqa: BLE001  the test's own thread shows it below
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield failure
    finally:
        stop.set()
        thread.join(timeout=30)
    assert not failure, failure
    assert not thread.is_alive()


@contextlib.contextmanager
def serving(settings: Settings, patience_s: float = 20) -> Iterator[LiveServer]:
    """Run the process until the block ends; its last ledger must balance."""
    server = LiveServer(settings)
    try:
        with in_a_thread(run, settings, threading.Event()) as failure:
            _wait_up(server, failure, patience_s)
            yield server
    finally:
        server.http.close()
        server.admin.close()
    ledger = server.records(Ledger)[-1]
    logged = {"traces": len(server.records(Trace)), "feedback": len(server.records(Feedback))}
    assert ledger.balanced
    assert {kind: ledger.outcomes[kind]["logged"] for kind in logged} == logged


def _wait_up(server: LiveServer, failure: list[BaseException], patience_s: float) -> None:
    for _ in range(int(50 * patience_s)):
        assert not failure, failure
        with contextlib.suppress(httpx.TransportError):
            server.admin.get("/admin/status")
            server.http.get("/health")
            return
        time.sleep(0.02)
    raise TimeoutError(server.url)


def assert_refused(response: httpx.Response, status: int, *words: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    for word in words:
        assert word in error["message"]
