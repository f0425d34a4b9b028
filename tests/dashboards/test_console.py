"""The console's routes, and its process on a real log."""

import json
import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from dashboards.console import STATIC, create_app
from dashboards.health import STAGE_NAMES
from dashboards.loop_view import LoopView
from dashboards.process import listen, report, run
from tendril import telemetry
from tendril.log import open_log
from tendril.settings import ConsoleSettings, Settings, TelemetrySettings
from tests.dashboards.run_log import START, make_ledger, small_run


def _client() -> TestClient:
    view = LoopView(now=lambda: START + 100)
    for record in small_run():
        view.add(record, START)
    return TestClient(create_app(view.snapshot), base_url="http://127.0.0.1:8080")


def test_the_api_says_what_the_fold_says() -> None:
    reply = _client().get("/api/loop")
    loop = reply.json()
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    assert (loop["live_version"], loop["base"]["acceptance"], loop["live"]["acceptance"]) == (
        2, 0.25, 1.0,
    )  # fmt: skip
    assert loop["versions"][1]["checks"][0]["name"] == "kl"


def test_everything_the_page_names_is_served_from_here() -> None:
    client = _client()
    page = client.get("/")
    assert page.status_code == 200
    names = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(names) >= 5
    for name in names:
        assert name.startswith("/static/")
        assert client.get(name).status_code == 200, name
    assert "default-src 'self'" in page.headers["content-security-policy"]


def test_modules_import_only_what_is_there_and_never_write_html() -> None:
    for module in STATIC.glob("*.js"):
        text = module.read_text()
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        for name in re.findall(r'from "\./([^"]+)"', text):
            assert (STATIC / name).is_file(), name


def test_the_vendored_chart_library_keeps_its_licence() -> None:
    [vendored] = (STATIC / "vendor").iterdir()
    assert "MIT License" in (vendored / "LICENSE").read_text()


def test_another_host_name_is_refused() -> None:
    assert _client().get("/api/loop", headers={"host": "attacker.example"}).status_code == 400


def test_a_taken_port_is_replaced_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with listen(0) as taken:
        port = taken.getsockname()[1]
        with caplog.at_level(logging.WARNING), listen(port) as other:
            assert other.getsockname()[0] == "127.0.0.1"
            assert other.getsockname()[1] != port
    assert f"port {port} is taken" in caplog.text


def test_what_only_the_console_sees_is_reported_as_metrics() -> None:
    view = LoopView(now=lambda: START + 100)
    for record in small_run():
        view.add(record, START)
    for node, read in (("node-1", 21), ("node-2", 22)):
        view.add(make_ledger(process="serving", node=node, read={"traces": read}), START)
    reader = InMemoryMetricReader()
    reporting = telemetry.setup("console", TelemetrySettings(), readers=[reader])
    report(reporting, view.snapshot())
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, Any] = {
        metric.name: metric.data.data_points
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    [live] = found["tendril.loop.live_version"]
    assert live.value == 2
    off = {p.attributes["node"]: p.value for p in found["tendril.ledger.imbalance"]}
    assert off == {"": 0, "node-1": 0, "node-2": 1}
    assert {p.attributes["stage"] for p in found["tendril.loop.newest"]} == set(STAGE_NAMES)
    reporting.shutdown()


def test_the_process_serves_the_log_and_takes_its_address_away_again(tmp_path: Path) -> None:
    settings = Settings(workspace=tmp_path, console=ConsoleSettings(port=0))
    log = open_log(settings)
    log.append([("k", record) for record in small_run()])
    stop = threading.Event()
    process = threading.Thread(target=run, args=(settings, stop))
    process.start()
    try:
        loop = _wait_for_decisions(tmp_path / "console.url", 21)
    finally:
        stop.set()
        process.join(timeout=10)
        log.close()
    assert (loop["live_version"], loop["counts"]["held"]) == (2, 1)
    assert not process.is_alive()
    assert not (tmp_path / "console.url").exists()


def _wait_for_decisions(url_file: Path, expected: int) -> Any:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if url_file.exists():
            url = url_file.read_text().strip()
            try:
                loop: Any = json.loads(httpx.get(f"{url}/api/loop").text)
            except httpx.ConnectError:
                continue
            if loop["traffic"]["num_decisions"] == expected:
                assert httpx.get(f"{url}/healthz").json() == {"status": "ok"}
                return loop
        time.sleep(0.05)
    raise AssertionError(f"expected {expected} decisions on the console within 10 s")
