"""The process as its operator meets it: taken ports, metrics, an unwritable folder, stops."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from serving.build import report
from serving.http_server import bound_socket
from serving.keys import load_or_create
from serving.process import run
from tendril import telemetry
from tendril.files import FolderInUse, WorkspaceUnwritable, sole_user
from tendril.log import LogUnavailable
from tendril.records import Latency, Trace
from tendril.settings import TelemetrySettings
from tests.builders import make_trace
from tests.serving.live_server import LiveServer, make_settings, serving, stream_body


@pytest.mark.parametrize("taken", ["port", "admin_port"])
def test_a_taken_port_ends_the_process_in_words(
    checkpoint: Path, tmp_path: Path, taken: str
) -> None:
    settings = make_settings(tmp_path, checkpoint)
    port = getattr(settings.serving, taken)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port}.*to another"),
    ):
        run(settings, threading.Event())


def test_every_decision_is_counted_and_timed() -> None:
    reader = InMemoryMetricReader()
    reporting = telemetry.setup("serving", TelemetrySettings(), readers=[reader])
    report(reporting, make_trace(latency=Latency(queue_s=0.1, first_token_s=0.25, total_s=0.5)))
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, Any] = {
        metric.name: metric.data.data_points[0]
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    assert found["tendril.serving.decisions"].value == 1
    assert found["gen_ai.server.time_to_first_token"].sum == 0.25
    assert found["gen_ai.server.request.duration"].sum == 0.5
    reporting.shutdown()


def test_decisions_are_counted_by_lane_and_what_is_not_to_be_learned_by_reason() -> None:
    reader = InMemoryMetricReader()
    reporting = telemetry.setup("serving", TelemetrySettings(), readers=[reader])
    report(reporting, make_trace(lane="offline"))
    for reason in ("greedy", "top_p"):
        report(reporting, make_trace(untrainable=reason))
    data = reader.get_metrics_data()
    assert data is not None
    points: dict[str, Any] = {
        metric.name: metric.data.data_points
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    by_lane = {p.attributes["lane"]: p.value for p in points["tendril.serving.decisions"]}
    by_reason = {p.attributes["reason"]: p.value for p in points["tendril.serving.untrainable"]}
    assert (by_lane, by_reason) == ({"online": 2, "offline": 1}, {"greedy": 1, "top_p": 1})
    reporting.shutdown()


def test_a_second_replica_in_the_same_folder_is_refused_with_the_cure(
    checkpoint: Path, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, checkpoint)
    with (
        sole_user(settings.path(settings.serving.folder), "x"),
        pytest.raises(FolderInUse, match=r"serving: another process.*set serving\.folder"),
    ):
        run(settings, threading.Event())


def test_a_port_is_free_again_at_once() -> None:
    with bound_socket("127.0.0.1", 0, "serving.port") as first:
        port = first.getsockname()[1]
    bound_socket("127.0.0.1", port, "serving.port").close()


def test_a_workspace_that_cannot_be_written_is_refused_with_path_and_cure(
    checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LogUnavailable, match=r"file/log\.db.*TENDRIL_WORKSPACE"):
        run(make_settings(tmp_path / "file", checkpoint), threading.Event())
    with pytest.raises(WorkspaceUnwritable, match=r"file/node\.secret.*TENDRIL_WORKSPACE"):
        load_or_create(tmp_path / "file" / "node.secret", "x")


CHILD = """
import sys
from tendril.process import run_until_stopped
from tendril.settings import Settings
from serving.process import run
run_until_stopped("serving", run, Settings.model_validate_json(sys.stdin.read()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
def test_a_stop_finishes_what_runs_and_a_kill_loses_nothing(
    checkpoint: Path, tmp_path: Path, kill: signal.Signals
) -> None:
    settings = make_settings(tmp_path, checkpoint, host="127.0.0.1")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(settings.model_dump_json())
    process.stdin.close()
    live = LiveServer(settings)
    _until(lambda: live.http.get("/health").status_code == 200)
    answered = [live.complete().headers["x-tendril-trace-id"] for _ in range(5)]
    with live.http.stream("POST", "/v1/completions", json=stream_body()) as reply:
        os.kill(process.pid, kill)
        if kill is signal.SIGTERM:
            assert reply.read().endswith(b"data: [DONE]\n\n")
            answered.append(reply.headers["x-tendril-trace-id"])
    assert process.wait(timeout=30) == (0 if kill is signal.SIGTERM else -kill)
    if kill is signal.SIGKILL:
        with serving(settings):
            pass
    ids = [trace.trace_id for trace in live.records(Trace)]
    assert set(answered) <= set(ids)
    assert len(ids) == len(set(ids))
    live.http.close()
    live.admin.close()


def _until(ready: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError
