"""Telemetry: numbers arrive as they were reported, and nothing hurts when nobody listens."""

import ast
import socket
import threading
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tendril.settings import TelemetrySettings
from tendril.telemetry import METRICS, SCHEMA_URL, SECONDS, SPANS, Telemetry, setup


@contextmanager
def otlp_receiver() -> Iterator[tuple[str, dict[str, list[bytes]]]]:
    """A loopback OTLP/HTTP receiver: its base URL, and what it got by path."""
    received: dict[str, list[bytes]] = {"/v1/metrics": [], "/v1/traces": []}

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received[self.path].append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()


def collect(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, object], object]]]:
    """By metric: each point's attributes and its value (of a histogram its count and sum)."""
    data = reader.get_metrics_data()
    assert data is not None
    [resource] = data.resource_metrics
    assert resource.resource.attributes["service.name"] == "serving"
    [scope] = resource.scope_metrics
    assert scope.scope.schema_url == SCHEMA_URL
    return {
        metric.name: [
            (
                dict(point.attributes or {}),
                point.value if hasattr(point, "value") else (point.count, point.sum),
            )
            for point in metric.data.data_points
        ]
        for metric in scope.metrics
    }


def fail_inside_a_span(telemetry: Telemetry) -> None:
    with telemetry.span("tendril.learner.step", policy_version=3) as span:
        span.set_attribute("num_episodes", 96)
        raise ZeroDivisionError


def test_counts_observations_and_gauges_arrive_with_their_attributes() -> None:
    reader = InMemoryMetricReader()
    telemetry = setup("serving", TelemetrySettings(), readers=[reader])
    telemetry.count("tendril.serving.decisions", 2, lane="online")
    telemetry.count("tendril.serving.decisions", lane="online")
    telemetry.count("tendril.serving.decisions", lane="offline")
    telemetry.gauge("tendril.serving.spool.depth", 7)
    telemetry.gauge("tendril.serving.spool.depth", 3)
    telemetry.record("tendril.shipper.swap.pause", 4.0)
    telemetry.record("tendril.shipper.swap.pause", 6.0)
    got = collect(reader)
    assert got["tendril.serving.decisions"] == [({"lane": "online"}, 3), ({"lane": "offline"}, 1)]
    assert got["tendril.serving.spool.depth"] == [({}, 3)]
    assert got["tendril.shipper.swap.pause"] == [({}, (2, 10.0))]
    assert "tendril.process.started" in got
    telemetry.shutdown()


def test_genai_durations_use_the_buckets_of_the_convention() -> None:
    reader = InMemoryMetricReader()
    telemetry = setup("serving", TelemetrySettings(), readers=[reader])
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "tendril"}
    telemetry.record("gen_ai.server.request.duration", 0.015, **attributes)
    data = reader.get_metrics_data()
    assert data is not None
    metrics = {m.name: m for m in data.resource_metrics[0].scope_metrics[0].metrics}
    [point] = metrics["gen_ai.server.request.duration"].data.data_points
    assert point.attributes == attributes
    assert point.explicit_bounds == SECONDS  # type: ignore[union-attr]
    assert (SECONDS[0], SECONDS[-1]) == (0.01, 81.92)
    assert point.bucket_counts[:3] == (0, 1, 0)  # type: ignore[union-attr]
    telemetry.shutdown()


def test_a_receiver_gets_metrics_and_spans_over_http() -> None:
    with otlp_receiver() as (endpoint, received):
        telemetry = setup("learner", TelemetrySettings(otlp_endpoint=endpoint))
        telemetry.count("tendril.learner.steps", 5)
        with pytest.raises(ZeroDivisionError):
            fail_inside_a_span(telemetry)
        telemetry.shutdown()
    metrics = ExportMetricsServiceRequest.FromString(received["/v1/metrics"][-1])
    by_name = {m.name: m for m in metrics.resource_metrics[0].scope_metrics[0].metrics}
    assert by_name["tendril.learner.steps"].sum.data_points[0].as_int == 5
    assert by_name["tendril.learner.steps"].sum.is_monotonic
    spans = ExportTraceServiceRequest.FromString(received["/v1/traces"][-1])
    [sent] = spans.resource_spans[0].scope_spans[0].spans
    assert sent.name == "tendril.learner.step"
    assert {a.key: a.value.int_value for a in sent.attributes} == {
        "policy_version": 3,
        "num_episodes": 96,
    }
    assert [event.name for event in sent.events] == ["exception"]


@pytest.mark.parametrize(
    "accepts",
    [
        pytest.param(False, id="nothing listens"),
        pytest.param(True, id="never answers", marks=pytest.mark.slow),
    ],
)
def test_an_endpoint_that_is_away_neither_blocks_nor_raises(accepts: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not accepts:
            server.close()
        settings = TelemetrySettings(
            otlp_endpoint=f"http://127.0.0.1:{port}", export_interval_s=0.05
        )
        telemetry = setup("learner", settings)
        start = time.monotonic()
        for _ in range(300):
            telemetry.count("tendril.learner.steps")
            with telemetry.span("tendril.learner.step"):
                pass
        assert time.monotonic() - start < 1.5
        telemetry.shutdown()
        assert time.monotonic() - start < 6.0


def test_without_an_endpoint_calls_cost_next_to_nothing() -> None:
    telemetry = setup("serving", TelemetrySettings())

    def report() -> None:
        telemetry.count("tendril.serving.decisions", lane="online")
        telemetry.record("gen_ai.server.request.duration", 0.1)

    assert min(timeit.repeat(report, number=1_000, repeat=5)) / 2_000 < 5e-6
    with telemetry.span("tendril.learner.step") as span:
        span.set_attribute("num_episodes", 1)
    telemetry.shutdown()


def test_unknown_names_and_wrong_kinds_are_refused_even_when_nothing_is_exported() -> None:
    telemetry = setup("serving", TelemetrySettings())
    with pytest.raises(KeyError, match=r"tendril\.steps: got an unknown name, expected a counter"):
        telemetry.count("tendril.steps")
    with pytest.raises(KeyError, match="got a counter, expected a gauge"):
        telemetry.gauge("tendril.learner.steps", 1.0)
    with pytest.raises(KeyError, match="got a gauge, expected a histogram"):
        telemetry.record("tendril.learner.loss", 1.0)
    with pytest.raises(KeyError, match=r"span tendril\.lunch: expected one of"):
        telemetry.span("tendril.lunch").__enter__()


def test_names_are_unique_and_histograms_have_rising_buckets() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert all(name.startswith(("tendril.", "gen_ai.server.")) for name in [*names, *SPANS])
    for metric in METRICS:
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name


def reported_names() -> Iterator[tuple[str, str, str]]:
    """Every call in our code that reports under a literal name: where, method, name."""
    root = Path(__file__).parents[2]
    for package in ("tendril", "serving", "signals", "learner", "offline_rl", "shipper"):
        for file in (root / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Attribute(attr="count" | "gauge" | "record" | "span" as method),
                        args=[ast.Constant(value=str(name)), *_],
                    ) if name.startswith(("tendril.", "gen_ai.")):
                        yield f"{file.relative_to(root)}:{node.lineno}", method, name


def test_code_reports_only_under_names_that_exist() -> None:
    kinds = {"counter": "count", "gauge": "gauge", "histogram": "record"}
    known = {(kinds[metric.kind], metric.name) for metric in METRICS}
    known |= {("span", name) for name in SPANS}
    found = list(reported_names())
    assert [where for where, method, name in found if (method, name) not in known] == []
    assert found


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _served(headers: dict[str, str], error: Exception | None = None) -> ReadableSpan:
    """One request's span, as it is exported."""
    spans = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    reporting = Telemetry(None, tracers)
    with (
        suppress(ValueError),
        reporting.server_span("chat", "tendril", headers) as span,
    ):
        span.set_attribute("gen_ai.usage.output_tokens", 3)
        if error is not None:
            raise error
    reporting.shutdown()
    (found,) = spans.get_finished_spans()
    return found


def test_a_request_is_a_part_of_its_callers_trace() -> None:
    span = _served({"traceparent": PARENT})
    assert (span.name, span.kind) == ("chat tendril", SpanKind.SERVER)
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert (context := span.get_span_context()) is not None
    assert f"{context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tendril",
        "gen_ai.request.model": "tendril",
        "gen_ai.usage.output_tokens": 3,
    }


@pytest.mark.parametrize("header", ["", "00-xyz", "ff-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_broken_trace_context_begins_a_new_one(header: str) -> None:
    assert _served({"traceparent": header}).parent is None


def test_a_request_that_fails_is_an_error_that_quotes_nobody() -> None:
    span = _served({}, ValueError("the user's own words"))
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "ValueError"
    assert "own words" not in f"{span.status.description} {span.events} {span.attributes}"
