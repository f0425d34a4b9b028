"""The door: who gets in, what the reply's headers name, what is believed, what is told onwards."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from serving.api.app import create_app
from serving.build import build_node
from serving.context import served_request
from serving.keys import internal_token
from serving.node import ServingNode
from serving.text import TextCodec
from tendril.ids import user_key
from tendril.log import MemoryLog
from tendril.records import Trace, decode
from tendril.telemetry import Telemetry
from tests.serving.live_server import KEY, make_settings
from tests.serving.scripted import Line, ScriptedEngine

SECRET_WORDS = "the-users-own-words"


class Doorway:
    """An application behind its door, and what came of its requests."""

    def __init__(self, node: ServingNode, log: MemoryLog, spans: InMemorySpanExporter) -> None:
        self.node, self._log, self.spans = node, log, spans
        assert isinstance(node.engine, ScriptedEngine)
        self.engine = node.engine
        self.http = TestClient(create_app(node), headers={"authorization": f"Bearer {KEY}"})

    def ask(self, path: str = "/v1/completions", **headers: str) -> tuple[Any, Trace]:
        body: dict[str, Any] = {"model": "tendril", "max_tokens": 4, "temperature": 0.5}
        if "chat" in path:
            body["messages"] = [{"role": "user", "content": SECRET_WORDS}]
        else:
            body["prompt"] = SECRET_WORDS
        return self.post(path, body, headers)

    def post(self, path: str, body: Any, headers: Mapping[Any, Any]) -> tuple[Any, Trace]:
        reply = self.http.post(path, json=body, headers={**headers})
        assert reply.status_code == 200, reply.text
        return reply, self.trace(reply.headers["x-tendril-trace-id"])

    def trace(self, trace_id: str) -> Trace:
        deadline = time.monotonic() + 5
        while self.node.spool.depth:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        reader = self._log.reader(trace_id, [Trace.TOPIC])
        traces = [decode(Trace, record.value) for record in reader.poll(10_000, 0)]
        return next(trace for trace in traces if trace.trace_id == trace_id)


@pytest.fixture
def door(tmp_path: Path, checkpoint: Path) -> Iterator[Doorway]:
    spans, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    codec, log = TextCodec(checkpoint), MemoryLog()
    engine = ScriptedEngine(codec, lambda request, index: Line("def value"))
    node = build_node(make_settings(tmp_path, checkpoint), log, engine, codec)
    object.__setattr__(node, "telemetry", Telemetry(None, tracers))
    yield Doorway(node, log, spans)
    node.spool.close()


def test_reply_headers_name_the_trace_and_a_token_for_it(door: Doorway) -> None:
    reply, trace = door.ask()
    assert reply.headers["x-tendril-policy-version"] == "1"
    event = {"event_id": "e1", "trace_id": trace.trace_id, "type": "suggestion.shown",
             "visible_ms": 300, "client_seq": 1, "client_time": 1.0}  # fmt: skip
    url = reply.headers["x-tendril-feedback-url"]
    assert door.http.post(url, json=event).json()["status"] == "accepted"


def test_a_refused_request_names_no_trace(door: Doorway) -> None:
    reply = door.http.post("/v1/completions", json={"model": "tendril", "prompt": 3})
    assert reply.status_code == 400
    assert not [name for name in reply.headers if name.startswith("x-tendril")]


def test_only_a_gateway_of_ours_names_the_experiments_arm(door: Doorway) -> None:
    arm = {"x-tendril-arm": "canary", "x-tendril-propensity": "0.05"}
    _, trace = door.ask(**arm)
    assert (trace.arm, trace.propensity) == ("live", 1.0)
    _, trace = door.ask(**arm, **{"x-tendril-gateway": "guessed"})
    assert (trace.arm, trace.propensity) == ("live", 1.0)
    token = internal_token(door.node.secret)
    _, trace = door.ask(**arm, **{"x-tendril-gateway": token})
    assert (trace.arm, trace.propensity) == ("canary", 0.05)


@pytest.mark.parametrize("propensity", ["0", "-1", "2", "nan", "x", ""])
def test_an_impossible_propensity_is_not_recorded(door: Doorway, propensity: str) -> None:
    token = internal_token(door.node.secret)
    _, trace = door.ask(**{"x-tendril-gateway": token, "x-tendril-arm": "canary",
                           "x-tendril-propensity": propensity})  # fmt: skip
    assert (trace.arm, trace.propensity) == ("live", 1.0)


def test_consent_is_taken_from_the_headers(door: Doorway) -> None:
    _, trace = door.ask()
    assert (trace.train_consent, trace.content_consent) == (True, False)
    _, trace = door.ask(**{"x-tendril-train-consent": "false", "x-tendril-content-consent": "true"})
    assert (trace.train_consent, trace.content_consent) == (False, True)


def test_a_user_is_the_same_named_in_the_header_and_in_the_body(door: Doorway) -> None:
    asked = {"model": "tendril", "prompt": "a", "max_tokens": 1}
    _, by_header = door.post("/v1/completions", asked, {b"x-tendril-user": "zoë".encode()})
    _, by_body = door.post("/v1/completions", asked | {"user": "zoë"}, {})
    assert by_header.user_key == by_body.user_key == user_key(f"{by_body.tenant}/zoë",
                                                              door.node.secret)  # fmt: skip


def test_a_lane_that_the_key_lacks_is_refused(door: Doorway) -> None:
    reply = door.http.post("/v1/completions", json={}, headers={"x-tendril-lane": "offline"})
    assert reply.status_code == 403
    assert "expected online, got 'offline'" in reply.json()["error"]["message"]


def test_a_draining_node_finishes_and_takes_no_more(door: Doorway) -> None:
    door.node.draining.set()
    reply = door.http.post("/v1/completions", json={"model": "tendril", "prompt": "a"})
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert door.http.get("/ready").status_code == 503
    assert door.http.get("/health").json()["draining"] is True


def test_a_full_queue_is_for_requests_and_not_for_probes(door: Doorway) -> None:
    door.engine.is_full = True
    assert door.http.get("/ready").status_code == 200
    reply = door.http.post("/v1/completions", json={"model": "tendril", "prompt": "a"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert door.node.spool.ledger(0.0).outcomes["traces"]["refused: engine busy"] == 1


def test_a_reply_that_speaks_before_its_first_token_is_named_all_the_same(door: Doorway) -> None:
    sent: list[str] = []

    async def announcing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"created ", "more_body": True})
        served_request.get().policy_version = 7
        sent.append(served_request.get().request_id)
        await send({"type": "http.response.body", "body": b"token ", "more_body": True})
        await send({"type": "http.response.body", "body": b"end", "more_body": False})

    http = TestClient(create_app(door.node, announcing), headers={"x-api-key": KEY})
    reply = http.post("/v1/responses", json={"input": "a"})
    assert reply.text == "created token end"
    assert [reply.headers["x-tendril-trace-id"]] == sent
    assert reply.headers["x-tendril-policy-version"] == "7"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
def test_an_engines_own_routes_stay_behind_the_door(door: Doorway, method: str) -> None:
    async def talkative(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError(f"{scope['method']} {scope['path']} came through")

    http = TestClient(create_app(door.node, talkative))
    for path in ("/metrics", "/docs", "//v1/completions", "/v1/completions/", "/v1/%2e%2e/docs"):
        url = f"http://testserver{path}"
        assert http.request(method, url).status_code == 401
        assert http.request(method, url, headers=door.http.headers).status_code == 404


def test_an_engines_own_websockets_stay_behind_the_door(door: Doorway) -> None:
    with pytest.raises(WebSocketDisconnect), door.http.websocket_connect("/v1/realtime"):
        pass


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_request_is_one_span_that_says_nothing_of_its_content(door: Doorway, path: str) -> None:
    _, trace = door.ask(path, **{"x-tendril-session-id": "s"})
    (span,) = door.spans.get_finished_spans()
    about = dict(span.attributes or {})
    assert about["gen_ai.response.id"] == trace.trace_id
    assert about["gen_ai.response.model"] == "tendril-v1"
    assert about["gen_ai.conversation.id"] == trace.session_id
    assert about["gen_ai.usage.output_tokens"] == len(trace.completion_token_ids)
    assert about["gen_ai.request.temperature"] == 0.5
    assert about["gen_ai.response.finish_reasons"] == ("stop",)
    said = f"{span.name} {about} {span.events}"
    assert SECRET_WORDS not in said
    assert "value" not in said


def test_anthropics_way_to_send_a_key_is_understood(door: Doorway) -> None:
    http = TestClient(door.http.app)
    assert http.get("/v1/models", headers={"x-api-key": KEY}).status_code == 200
    assert http.get("/v1/models", headers={"x-api-key": "other"}).status_code == 401


UNREADABLE = [
    b'\xef\xbb\xbf{"prompt": "a", "user": "ann"}',
    '{"prompt": "a", "user": "ann"}'.encode("utf-16"),
    b'{"prompt": "a", "user": "ann", "metadata": {"score": NaN}}',
    b'{"prompt": "a", "user": "ann", "metadata": {"t": "\\ud83d"}}',
    b'["prompt"]',
    b"",
]


@pytest.mark.parametrize("body", UNREADABLE)
def test_a_body_that_the_door_cannot_read_is_nobodys_and_is_refused(
    door: Doorway, body: bytes
) -> None:
    """Other parsers take some of these: then a user who said no would be served as anonymous."""
    reply = door.http.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert reply.status_code == 400
    assert "expected one JSON object" in reply.json()["error"]["message"]


@pytest.mark.parametrize("word", ["no", "0", "off", '"false"', "", "true, maybe"])
def test_a_consent_that_is_neither_yes_nor_no_is_refused(door: Doorway, word: str) -> None:
    reply = door.http.post(
        "/v1/completions", json={"prompt": "a"}, headers={"x-tendril-train-consent": word}
    )
    assert reply.status_code == 400
    assert "expected true or false" in reply.json()["error"]["message"]


@pytest.mark.parametrize("word", ["FALSE", "true, false", "false, false"])
def test_of_several_words_any_no_wins(door: Doorway, word: str) -> None:
    _, trace = door.ask(**{"x-tendril-train-consent": word})
    assert trace.train_consent is False


def test_a_consent_under_a_mistaken_name_is_not_passed_over(door: Doorway) -> None:
    reply = door.http.post(
        "/v1/completions", json={"prompt": "a"}, headers={"x_tendril_train_consent": "false"}
    )
    assert reply.status_code == 400


@pytest.mark.parametrize("where", ["header", "body"])
def test_a_name_that_is_too_long_is_refused_and_not_cut(door: Doorway, where: str) -> None:
    name = "u" * 129
    headers = {"x-tendril-user": name} if where == "header" else {}
    body = {"prompt": "a"} | ({"user": name} if where == "body" else {})
    reply = door.http.post("/v1/completions", json=body, headers=headers)
    assert reply.status_code == 400
    assert "at most 128 characters" in reply.json()["error"]["message"]


def test_a_harness_is_named_by_a_code_and_prose_by_its_digest(door: Doorway) -> None:
    _, trace = door.ask(**{"x-tendril-harness": "agent/2.1"})
    assert trace.harness_digest == "agent/2.1"
    _, trace = door.ask(**{"x-tendril-harness": "be kind to ada"})
    assert trace.harness_digest is not None
    assert "ada" not in trace.harness_digest
