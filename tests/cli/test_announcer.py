"""What `tendril up` says: once that it serves, and now and then that a process keeps ending."""

import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tendril.cli.announcer import Announcer, gateway_url
from tendril.cli.supervisor import Supervisor
from tendril.settings import Settings


class _Gateway(BaseHTTPRequestHandler):
    status = 503

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/ready" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[HTTPServer]:
    class Handler(_Gateway):
        pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _settings(workspace: Path, port: int) -> Settings:
    return Settings.model_validate({"workspace": workspace, "gateway": {"port": port}})


def _clock() -> Callable[[], float]:
    seconds = iter(range(0, 10_000, 3))
    return lambda: float(next(seconds))


def test_it_says_that_it_is_ready_once_and_not_before(gateway: HTTPServer, tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "api_key").write_text("tk-x")
    settings = _settings(tmp_path, gateway.server_port)
    supervisor = Supervisor(tmp_path, {})
    announcer = Announcer(settings, supervisor, say=lines.append, monotonic=_clock())
    announcer.look()
    assert lines == []
    gateway.RequestHandlerClass.status = 200  # type: ignore[attr-defined]
    announcer.look()
    announcer.look()
    [line] = lines
    assert line.startswith("ready after ")
    assert f"OpenAI API on http://127.0.0.1:{gateway.server_port}/v1" in line
    assert f"key in {tmp_path / 'api_key'}; console on http://127.0.0.1:8080" in line


def test_a_process_that_keeps_ending_is_said_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tendril.cli.supervisor.FIRST_BACKOFF_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    lines: list[str] = []
    supervisor = Supervisor(tmp_path, {})
    supervisor.add("serve", ["-c", "import sys; print('working'); sys.exit('no such model\\n')"])
    announcer = Announcer(_settings(tmp_path, port), supervisor, say=lines.append)
    while supervisor.children()[0].restarts < 3:
        supervisor.tick()
        announcer.look()
    supervisor.stop()
    log = tmp_path / "logs" / "serve.log"
    tail = f"and was started again; last with status 1: no such model (more in {log})"
    assert lines == [f"serve ended once {tail}", f"serve ended 2 times {tail}"]


def test_an_address_for_everyone_is_shown_as_one_that_can_be_opened(tmp_path: Path) -> None:
    settings = Settings.model_validate({"workspace": tmp_path, "gateway": {"host": "::"}})
    assert gateway_url(settings) == "http://[::1]:8000"
