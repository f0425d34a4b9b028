"""Metrics and spans: every name in one place, and the one file that knows OpenTelemetry.

Telemetry is lossy by design (sampled, dropped when the receiver is away): rewards, loss accounting
and release state come from the event log. Attribute keys with dots go in as `**{"a.b": value}`.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from opentelemetry.metrics import Counter, Histogram, Meter, _Gauge
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tendril import __version__
from tendril.settings import TelemetrySettings

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.1"
"""The semantic conventions that the `gen_ai.*` names below come from (still in development)."""
EXPORT_TIMEOUT_S = 2.0
SHUTDOWN_TIMEOUT_S = 3.0

Attribute: TypeAlias = str | bool | int | float


@dataclass(frozen=True, slots=True)
class Metric:
    """One instrument; `unit` is UCUM, with braces where things are counted."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram."""


SECONDS = tuple(0.01 * 2**k for k in range(14))
"""10 ms to 81.92 s: the buckets that the GenAI conventions ask for."""
TOKENS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Between two tokens, as the GenAI conventions advise."""
MILLISECONDS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
REWARDS = (-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1)
RATIOS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

METRICS = (
    Metric("gen_ai.server.request.duration", "histogram", "s", "Whole request", SECONDS),
    Metric("gen_ai.server.time_to_first_token", "histogram", "s", "To first token", SECONDS),
    Metric("gen_ai.server.time_per_output_token", "histogram", "s", "Each after the first", TOKENS),
    Metric("tendril.process.started", "gauge", "s", "Unix time this process started at"),
    Metric("tendril.log.lag", "gauge", "{record}", "Not yet read, by `group` and `topic`"),
    Metric("tendril.loop.newest", "gauge", "s", "Unix time of the newest thing, by `stage`"),
    Metric("tendril.ledger.imbalance", "gauge", "{record}", "Read minus accounted for, by `kind`"),
    Metric("tendril.loop.live_version", "gauge", "{version}", "Version that is released"),
    Metric("tendril.serving.decisions", "counter", "{decision}", "Silence included, by `lane`"),
    Metric("tendril.serving.untrainable", "counter", "{decision}", "Not learned, by `reason`"),
    Metric("tendril.serving.refused", "counter", "{request}", "Requests refused, by `reason`"),
    Metric("tendril.serving.feedback", "counter", "{event}", "Feedback taken, by `type`"),
    Metric("tendril.serving.running", "gauge", "{request}", "Requests decoded together now"),
    Metric("tendril.serving.waiting", "gauge", "{request}", "Requests waiting for the engine"),
    Metric("tendril.serving.spool.depth", "gauge", "{record}", "Records not yet on the log"),
    Metric("tendril.serving.spool.limit", "gauge", "{record}", "Depth at which it refuses"),
    Metric("tendril.serving.policy.version", "gauge", "{version}", "Version that answers now"),
    Metric("tendril.gateway.requests", "counter", "{request}", "Forwarded, by `status`"),
    Metric("tendril.gateway.refused", "counter", "{request}", "Refused here, by `reason`"),
    Metric("tendril.gateway.retries", "counter", "{request}", "Tried on another replica"),
    Metric("tendril.gateway.cut_off", "counter", "{request}", "Replies that lost their replica"),
    Metric("tendril.gateway.running", "gauge", "{request}", "Requests in this gateway now"),
    Metric("tendril.gateway.replicas", "gauge", "{replica}", "Ready replicas, by `group`"),
    Metric("tendril.signals.episodes", "counter", "{episode}", "Episodes closed, by `outcome`"),
    Metric("tendril.signals.pending", "gauge", "{trace}", "Traces waiting for feedback"),
    Metric("tendril.trust.findings", "counter", "{finding}", "Findings, by `detector`"),
    Metric("tendril.trust.quarantines", "gauge", "{quarantine}", "In force, by `detector`"),
    Metric("tendril.signals.reward", "histogram", "{reward}", "Reward an episode", REWARDS),
    Metric("tendril.learner.steps", "counter", "{step}", "Optimizer steps"),
    Metric("tendril.learner.loss", "gauge", "{loss}", "Loss of the newest step"),
    Metric("tendril.learner.kl", "gauge", "{nat}", "KL a token to the last shipped version"),
    Metric("tendril.learner.numerics_gap", "gauge", "{nat}", "Mean log-prob gap to serving"),
    Metric("tendril.learner.dropped", "counter", "{episode}", "Episodes dropped, by `reason`"),
    Metric("tendril.shipper.verdicts", "counter", "{version}", "Gate verdicts, by `verdict`"),
    Metric("tendril.shipper.delta.ratio", "histogram", "{ratio}", "Full size over delta", RATIOS),
    Metric("tendril.shipper.delta.size", "gauge", "By", "Bytes of the newest delta"),
    Metric(
        "tendril.shipper.swap.pause", "histogram", "ms", "Requests held by one swap", MILLISECONDS
    ),
)

SPANS = frozenset(
    {
        "tendril.learner.step",
        "tendril.learner.publish",
        "tendril.shipper.gate",
        "tendril.shipper.delta",
        "tendril.shipper.stage",
    }
)

_BY_NAME = {metric.name: metric for metric in METRICS}


class Telemetry:
    """What one process reports. Every call is cheap, none waits for the network or raises for it.

    A name that is not in `METRICS` (or `SPANS`), or of another kind, raises `KeyError`.
    """

    def __init__(self, meters: MeterProvider | None, tracers: TracerProvider | None) -> None:
        self._meters, self._tracers = meters, tracers
        self._tracer: Tracer | None = None
        if tracers is not None:
            self._tracer = tracers.get_tracer("tendril", __version__, schema_url=SCHEMA_URL)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, _Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        if meters is not None:
            self._make_instruments(meters.get_meter("tendril", __version__, schema_url=SCHEMA_URL))

    def _make_instruments(self, meter: Meter) -> None:
        for metric in METRICS:
            about = {"unit": metric.unit, "description": metric.description}
            if metric.kind == "counter":
                self._counters[metric.name] = meter.create_counter(metric.name, **about)
            elif metric.kind == "gauge":
                self._gauges[metric.name] = meter.create_gauge(metric.name, **about)
            else:
                self._histograms[metric.name] = meter.create_histogram(
                    metric.name, **about, explicit_bucket_boundaries_advisory=metric.buckets
                )

    def count(self, name: str, n: int = 1, **attributes: Attribute) -> None:
        """Add `n` >= 0 to a counter."""
        _check(name, "counter")
        if self._counters:
            self._counters[name].add(n, attributes)

    def gauge(self, name: str, value: float, **attributes: Attribute) -> None:
        """Say what a value is now."""
        _check(name, "gauge")
        if self._gauges:
            self._gauges[name].set(value, attributes)

    def record(self, name: str, value: float, **attributes: Attribute) -> None:
        """Add one observation to a histogram."""
        _check(name, "histogram")
        if self._histograms:
            self._histograms[name].record(value, attributes)

    @contextmanager
    def span(self, name: str, **attributes: Attribute) -> Iterator[Span]:
        """Time a block; an exception is noted on the span and goes on."""
        if name not in SPANS:
            raise KeyError(f"span {name}: expected one of {', '.join(sorted(SPANS))}")
        if self._tracer is None:
            yield INVALID_SPAN
            return
        with self._tracer.start_as_current_span(name, attributes=attributes) as span:
            yield span

    @contextmanager
    def server_span(self, operation: str, model: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """One request as the GenAI conventions see it: `{operation} {model}`, kind SERVER.

        `headers` may carry the caller's W3C trace context, of which this becomes a part. Of an
        exception only its class is noted: messages may quote what a user wrote.
        """
        if self._tracer is None:
            yield INVALID_SPAN
            return
        parent = TraceContextTextMapPropagator().extract(headers)
        about = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "tendril",
            "gen_ai.request.model": model,
        }
        with self._tracer.start_as_current_span(
            f"{operation} {model}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=about,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(StatusCode.ERROR)
                raise

    def shutdown(self) -> None:
        """Send what is left; gives up after `SHUTDOWN_TIMEOUT_S` when nobody takes it."""
        providers = [p for p in (self._meters, self._tracers) if p is not None]
        threads = [threading.Thread(target=p.shutdown, daemon=True) for p in providers]
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
        for thread in threads:
            thread.start()
        for thread in threads:  # the SDK's own time-outs add up to half a minute
            thread.join(max(0.0, deadline - time.monotonic()))


NO_TELEMETRY = Telemetry(None, None)
"""Reports nothing; checks names all the same."""


def _check(name: str, kind: str) -> None:
    metric = _BY_NAME.get(name)
    if metric is None or metric.kind != kind:
        known = ", ".join(sorted(m.name for m in METRICS if m.kind == kind))
        got = f"a {metric.kind}" if metric else "an unknown name"
        raise KeyError(f"metric {name}: got {got}, expected a {kind}: {known}")


def setup(
    process: str, settings: TelemetrySettings, *, readers: Sequence[MetricReader] = ()
) -> Telemetry:
    """Telemetry of one process, exported over OTLP/HTTP when the settings name an endpoint.

    `readers` are further SDK readers (tests use one in memory). Call `shutdown` at the end.
    """
    if settings.otlp_endpoint is None and not readers:
        return NO_TELEMETRY
    resource = _resource(process)
    all_readers = [*readers]
    tracers = None
    if settings.otlp_endpoint is not None:
        all_readers.append(_metric_exporter(settings.otlp_endpoint, settings.export_interval_s))
        tracers = _span_exporter(settings.otlp_endpoint, resource)
    meters = MeterProvider(all_readers, resource=resource, shutdown_on_exit=False)
    telemetry = Telemetry(meters, tracers)
    telemetry.gauge("tendril.process.started", time.time())
    return telemetry


def _resource(process: str) -> Resource:
    return Resource.create(
        {
            "service.namespace": "tendril",
            "service.name": process,
            "service.version": __version__,
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
        }
    )


def _metric_exporter(endpoint: str, interval_s: float) -> MetricReader:
    # Imported here: it brings an HTTP client that processes without an endpoint never need.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    exporter = OTLPMetricExporter(f"{endpoint.rstrip('/')}/v1/metrics", timeout=EXPORT_TIMEOUT_S)
    return PeriodicExportingMetricReader(
        exporter,
        export_interval_millis=interval_s * 1000,
        export_timeout_millis=EXPORT_TIMEOUT_S * 1000,
    )


def _span_exporter(endpoint: str, resource: Resource) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT_S)
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(exporter))
    return tracers
