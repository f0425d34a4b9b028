"""Feedback, whatever comes in: a clear 4xx in words, nothing lost or counted twice."""

import gzip
import json
import time
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.feedback.tokens import FeedbackTokens, TraceScope
from serving.keys import node_secret
from tendril.records import Feedback, FeedbackType
from tests.serving.any_json import anything
from tests.serving.feedback.vocabulary import FIELDS, USER_TYPES, make_typed
from tests.serving.live_server import (
    LiveServer,
    assert_refused,
    make_event,
    make_settings,
    post_json,
    serving,
)


@pytest.fixture(scope="module")
def reply(server: LiveServer) -> httpx.Response:
    return server.complete()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "suggestion.loved"}, ("type", "got 'suggestion.loved'")),
        ({"type": None}, ("type",)),
        ({"span": [5, 2]}, ("span", "start <= end", "got [5, 2]")),
        ({"span": [-1, 2]}, ("span.0", "got -1")),
        ({"span": [1]}, ("span.1",)),
        ({"client_seq": -1}, ("client_seq", "got -1")),
        ({"client_seq": 2**63}, ("client_seq",)),
        ({"event_id": ""}, ("event_id",)),
        ({"event_id": "\ud800"}, ("event_id",)),
        ({"event_id": "e" * 129}, ("event_id",)),
        ({"extra": 1}, ("extra: expected no such field in 'suggestion.accepted', got 1",)),
        ({"policy_version": 3}, ("policy_version: expected no such field",)),
        ({"\ud800": 1}, ("\\ud800",)),
        ({"value": "high"}, ("value", "got 'high'")),
        ({"value": float("nan")}, ("value", "finite")),
        ({"client_time": float("inf")}, ("client_time", "finite")),
        ({"visible_ms": -1}, ("visible_ms", "got -1")),
        ({"feedback_token": 5}, ("feedback_token",)),
    ],
)
def test_feedback_that_cannot_be_is_refused_in_words(
    server: LiveServer, reply: httpx.Response, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    event = make_event(reply.headers["x-tendril-trace-id"]) | change
    response = httpx.post(
        server.url + reply.headers["x-tendril-feedback-url"],
        content=json.dumps(event),
        headers={"content-type": "application/json"},
    )
    assert_refused(response, 400, *words)


def test_feedback_needs_the_token_of_its_trace(server: LiveServer, reply: httpx.Response) -> None:
    url = reply.headers["x-tendril-feedback-url"]
    other = server.complete().headers["x-tendril-trace-id"]
    mine = reply.headers["x-tendril-trace-id"]
    for path, trace_id in (
        ("/v1/feedback", mine), ("/v1/feedback?token=forged", mine), (url[:-1] + "!", mine),
        ("/v1/feedback?token=" + "é" * 50, mine), (url, other), (url, "unknown"),
    ):  # fmt: skip
        response = httpx.post(server.url + path, json=make_event(trace_id))
        assert_refused(response, 403, "feedback_token: expected")
    lone = make_event(mine) | {"feedback_token": "\ud800"}
    headers = {"content-type": "application/json"}
    content = json.dumps(lone)
    assert_refused(httpx.post(server.url + "/v1/feedback", content=content, headers=headers), 400)


def test_an_expired_token_is_gone(checkpoint: Path, tmp_path: Path) -> None:
    secret = node_secret(tmp_path)
    tokens = FeedbackTokens(secret, ttl_s=0.5)
    token = tokens.issue(TraceScope("t1", "s1", "acme", "u1"))
    with serving(make_settings(tmp_path, checkpoint, feedback_token_ttl_s=0.5)) as live:
        time.sleep(1.1)
        url = f"{live.url}/v1/feedback?token={token}"
        assert_refused(httpx.post(url, json=make_event("t1")), 410, "expected one under 0.5 s old")


def test_an_event_that_comes_twice_is_recorded_once(server: LiveServer) -> None:
    reply = server.complete()
    assert server.report(reply).json()["status"] == "accepted"
    assert server.report(reply).json()["status"] == "duplicate"
    assert server.report(reply, event_id="another").json()["status"] == "accepted"
    trace_id = reply.headers["x-tendril-trace-id"]
    server.trace(trace_id)
    time.sleep(0.1)
    mine = [event for event in server.records(Feedback) if event.trace_id == trace_id]
    assert sorted(event.event_id for event in mine) == sorted(["another", f"e-{trace_id}"])


def test_each_event_of_a_batch_has_its_own_result(server: LiveServer) -> None:
    reply = server.complete()
    url = server.url + reply.headers["x-tendril-feedback-url"]
    trace_id = reply.headers["x-tendril-trace-id"]
    good = make_event(trace_id)
    events = [good, good | {"event_id": "b", "type": "no"}, good | {"event_id": "c"}, good]
    results = httpx.post(url, json={"events": events}).json()["results"]
    assert [r["status"] for r in results] == ["accepted", "refused", "accepted", "duplicate"]
    assert results[1]["event_id"] == "b"
    assert "got 'no'" in results[1]["error"]["message"]
    headers = {"content-type": "application/json"}
    odd = httpx.post(url, content='{"events": [{"event_id": "\\ud800"}]}', headers=headers)
    assert odd.json()["results"][0]["status"] == "refused"


def test_a_batch_of_501_is_refused_whole(server: LiveServer, reply: httpx.Response) -> None:
    response = httpx.post(
        server.url + reply.headers["x-tendril-feedback-url"], json={"events": [{}] * 501}
    )
    assert_refused(response, 400, "events", "at most 500 items")


CONTENT_TYPES = [
    "text/plain;charset=UTF-8", "application/json", "application/x-www-form-urlencoded",
    "application/octet-stream", "nonsense", None,
]  # fmt: skip


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_a_beacon_needs_no_content_type_and_no_key(
    server: LiveServer, reply: httpx.Response, content_type: str | None
) -> None:
    event = make_event(reply.headers["x-tendril-trace-id"], event_id=f"beacon {content_type}")
    response = httpx.post(
        server.url + reply.headers["x-tendril-feedback-url"],
        content=json.dumps(event).encode(),
        headers={"content-type": content_type} if content_type else {},
    )
    assert response.json() == {"event_id": event["event_id"], "status": "accepted"}


def test_a_compressed_body_is_refused_in_words(server: LiveServer, reply: httpx.Response) -> None:
    event = make_event(reply.headers["x-tendril-trace-id"])
    for content in (gzip.compress(json.dumps(event).encode()), json.dumps(event).encode()):
        response = httpx.post(
            server.url + reply.headers["x-tendril-feedback-url"],
            content=content,
            headers={"content-encoding": "gzip"},
        )
        assert_refused(response, 400, "Content-Encoding: expected none, got 'gzip'")


def test_one_token_serves_all_choices_of_its_request(
    server: LiveServer, reply: httpx.Response
) -> None:
    trace_id = reply.headers["x-tendril-trace-id"]
    url = server.url + reply.headers["x-tendril-feedback-url"]
    third = httpx.post(url, json=make_event(f"{trace_id}.3"))
    assert third.json()["status"] == "accepted"
    other = httpx.post(url, json=make_event(f"{trace_id}x"))
    assert_refused(other, 403, "got one for another trace")


def _about_session(**overrides: Any) -> dict[str, Any]:
    event = {"event_id": "e1", "type": "session.ended", "client_seq": 9, "client_time": 1_000.0}
    return event | overrides


def _logged(server: LiveServer, event_id: str, count: int = 1) -> list[Feedback]:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = [event for event in server.records(Feedback) if event.event_id == event_id]
        if len(found) >= count:
            return found
        time.sleep(0.02)
    raise TimeoutError(event_id)


def test_a_session_is_reported_on_by_token_or_by_key(
    server: LiveServer, reply: httpx.Response
) -> None:
    url = server.url + reply.headers["x-tendril-feedback-url"]
    by_token = httpx.post(url, json=_about_session(event_id="by token"))
    named = server.http.post(
        "/v1/completions",
        json={"model": "tendril", "prompt": "def a", "max_tokens": 2, "user": "ada"},
        headers={"x-tendril-session-id": "doc"},
    )
    by_key = server.http.post(
        "/v1/feedback", json=_about_session(event_id="by key", session_id="doc", user="ada")
    )
    assert {by_token.json()["status"], by_key.json()["status"]} == {"accepted"}
    for event_id, about in (("by token", reply), ("by key", named)):
        [event] = _logged(server, event_id)
        trace = server.trace(about.headers["x-tendril-trace-id"])
        assert event.trace_id is None
        assert (event.session_id, event.tenant, event.user_key) == (
            trace.session_id, trace.tenant, trace.user_key,
        )  # fmt: skip
    assert_refused(httpx.post(f"{server.url}/v1/feedback", json=_about_session()), 401, "got none")


@pytest.mark.parametrize("name", USER_TYPES)
def test_what_a_user_decides_about_their_data_needs_a_key(
    server: LiveServer, reply: httpx.Response, name: str
) -> None:
    event = make_typed(name, user="ada")
    url = server.url + reply.headers["x-tendril-feedback-url"]
    assert_refused(httpx.post(url, json=event), 401, "got none")
    assert server.http.post("/v1/feedback", json=event).json()["status"] == "accepted"
    assert server.http.post("/v1/feedback", json=event).json()["status"] == "duplicate"
    another = server.http.post("/v1/feedback", json=event | {"user": "bob"})
    assert another.json()["status"] == "accepted"  # ids are each user's own
    ada, bob = _logged(server, event["event_id"], count=2)
    assert ada.user_key != bob.user_key
    assert "ada" not in repr(ada)


def test_every_type_is_taken_and_logged(server: LiveServer) -> None:
    reply = server.complete()
    trace_id = reply.headers["x-tendril-trace-id"]
    events = [
        make_typed(name, trace_id=None if name in USER_TYPES else trace_id) for name in FIELDS
    ]
    url = reply.headers["x-tendril-feedback-url"]
    results = server.http.post(url, json={"events": events}).json()["results"]
    refused = [result for result in results if result["status"] == "refused"]
    assert refused == []
    schema = httpx.get(f"{server.url}/v1/feedback/schema").json()
    assert len(schema["oneOf"]) > 20


events = st.fixed_dictionaries(
    {},
    optional={
        "event_id": st.text(max_size=5) | anything,
        "trace_id": st.just("TRACE") | anything,
        "type": st.sampled_from(get_args(FeedbackType)) | anything,
        "span": st.tuples(st.integers(-1, 5), st.integers(-1, 5)) | anything,
        "client_seq": st.integers() | anything,
        "client_time": st.floats() | anything,
        "value": st.floats() | anything,
        "events": st.lists(anything, max_size=2) | anything,
    },
)


@settings(max_examples=30)
@given(body=events | anything)
def test_no_feedback_body_makes_a_server_error(
    server: LiveServer, reply: httpx.Response, body: Any
) -> None:
    if isinstance(body, dict) and body.get("trace_id") == "TRACE":
        body["trace_id"] = reply.headers["x-tendril-trace-id"]
    response = post_json(server, reply.headers["x-tendril-feedback-url"], body)
    assert response.status_code in (200, 400, 401, 403), response.text
