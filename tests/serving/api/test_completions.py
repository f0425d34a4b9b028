"""Completions as clients meet them: replies, their traces, hang-ups, refusals under load."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from serving.api.app import create_app
from serving.build import build_node, load_engine
from tendril.log import LogUnavailable, MemoryLog
from tendril.records import Ledger, Trace
from tests.serving.live_server import (
    KEY,
    LiveServer,
    make_event,
    make_settings,
    serving,
    stream_body,
)
from tests.serving.small_model import SILENCE, Reference, make_request


def test_a_trace_is_what_was_sampled(server: LiveServer, reference: Reference) -> None:
    reply = server.complete(prompt=[70, 71, 72], temperature=0.8, max_tokens=9, logprobs=1)
    trace = server.trace(reply.headers["x-tendril-trace-id"])
    choice = reply.json()["choices"][0]
    request = make_request(70, 71, 72, temperature=0.8)
    expected = reference.logprobs(request, list(trace.completion_token_ids))
    assert trace.prompt_token_ids == (70, 71, 72)
    assert trace.behavior_logprobs == pytest.approx(expected, abs=1e-4)
    assert choice["logprobs"]["token_logprobs"] == list(trace.behavior_logprobs)
    assert len(choice["logprobs"]["tokens"]) == len(trace.completion_token_ids)
    assert sum(trace.token_bytes) == len(choice["text"].encode())
    assert trace.finish_reason == choice["finish_reason"]
    assert reply.headers["x-tendril-policy-version"] == "1"
    assert trace.exploration is not None
    assert trace.exploration.share == 0.5
    assert 0 <= trace.latency.queue_s <= trace.latency.first_token_s <= trace.latency.total_s


def test_silence_is_a_decision_with_a_trace(server: LiveServer, reference: Reference) -> None:
    prompt = reference.quietest_prompt()
    for _ in range(600):  # silence comes with 2.7 %: all but never does it not come at all
        reply = server.complete(prompt=[prompt], temperature=0.5, max_tokens=1)
        if reply.json()["choices"][0]["text"] == "":
            trace = server.trace(reply.headers["x-tendril-trace-id"])
            if trace.completion_token_ids == (SILENCE,):
                break
    assert trace.completion_token_ids == (SILENCE,)
    assert trace.suppressed
    assert trace.token_bytes == (0,)
    assert trace.exploration is not None
    assert not trace.exploration.forced
    assert trace.exploration.silence_logprob == trace.behavior_logprobs[0]


def test_a_stop_string_ends_the_text_and_not_the_record(server: LiveServer) -> None:
    text = server.complete(max_tokens=30).json()["choices"][0]["text"]
    stop = text[5:7]
    reply = server.complete(max_tokens=30, stop=stop)
    choice = reply.json()["choices"][0]
    trace = server.trace(reply.headers["x-tendril-trace-id"])
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == trace.finish_reason == "stop"
    assert sum(trace.token_bytes) == len(choice["text"].encode())
    assert len(trace.completion_token_ids) < 30
    server.wait_idle()


def test_almost_zero_temperature_is_greedy(server: LiveServer) -> None:
    cold, greedy = server.complete(temperature=1e-300), server.complete()
    assert cold.json()["choices"][0]["text"] == greedy.json()["choices"][0]["text"]
    trace = server.trace(cold.headers["x-tendril-trace-id"])
    assert (trace.sampling.temperature, trace.untrainable) == (0.0, "greedy")


def test_almost_zero_top_p_leaves_the_best_token(server: LiveServer) -> None:
    narrow, greedy = server.complete(temperature=1, top_p=5e-324), server.complete()
    assert narrow.status_code == 200, narrow.text
    assert narrow.json()["choices"][0]["text"] == greedy.json()["choices"][0]["text"]


def test_a_client_that_hangs_up_leaves_the_tokens_so_far(server: LiveServer) -> None:
    with server.http.stream("POST", "/v1/completions", json=stream_body()) as reply:
        trace_id = reply.headers["x-tendril-trace-id"]
        next(reply.iter_lines())
    trace = server.trace(trace_id)
    assert trace.finish_reason == "cancelled_by_client"
    assert 0 < len(trace.completion_token_ids) < 110
    server.wait_idle()


def test_a_client_that_hangs_up_before_its_answer_frees_its_slot(server: LiveServer) -> None:
    before = len(server.records(Trace))
    body = json.dumps(stream_body(stream=False)).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", server.settings.serving.port), 5) as raw:
        raw.sendall(head + body)
        while not server.admin.get("/admin/status").json()["num_running"]:
            pass
        server.complete(max_tokens=1)  # sampled and delivered after the other's first token
    server.wait_idle()
    new = server.trace(server.complete().headers["x-tendril-trace-id"])
    others = [trace for trace in server.records(Trace)[before:] if trace != new]
    assert [trace.finish_reason for trace in others] == ["length", "cancelled_by_client"]


def test_a_swap_in_the_middle_of_a_reply_is_in_its_trace(
    checkpoints: list[Path], tmp_path: Path
) -> None:
    with serving(make_settings(tmp_path, checkpoints[0])) as live:
        stage = {"policy_version": 2, "folder": str(checkpoints[1])}
        digest = live.admin.post("/admin/stage", json=stage).json()["weights_digest"]
        with live.http.stream("POST", "/v1/completions", json=stream_body()) as reply:
            trace_id = reply.headers["x-tendril-trace-id"]
            swapped = live.admin.post("/admin/swap", json={"policy_version": 2}).json()
            reply.read()
        assert swapped["weights_digest"] == digest
        spans = live.trace(trace_id).policy_spans
        assert [span.policy_version for span in spans] == [1, 2]
        again = live.admin.post("/admin/swap", json={"policy_version": 3})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "swap_refused")
        bad = live.admin.post("/admin/stage", json={"policy_version": 3, "folder": "/none\0"})
        assert (bad.status_code, bad.json()["error"]["code"]) == (409, "stage_refused")
        assert live.complete().headers["x-tendril-policy-version"] == "2"


def test_a_full_queue_is_a_429_that_the_ledger_knows(checkpoint: Path, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, checkpoint, max_running=1, max_waiting=1)
    with serving(settings) as live:

        async def crowd() -> list[int]:
            async with httpx.AsyncClient(base_url=live.url, headers=live.http.headers) as client:
                body = stream_body(stream=False, max_tokens=60)
                replies = await asyncio.gather(
                    *(client.post("/v1/completions", json=body, timeout=20) for _ in range(8))
                )
            busy = [reply for reply in replies if reply.status_code == 429]
            assert all(reply.headers["retry-after"] == "1" for reply in busy)
            return [reply.status_code for reply in replies]

        statuses = asyncio.run(crowd())
        assert set(statuses) == {200, 429}
    ledger = live.records(Ledger)[-1]
    assert ledger.outcomes["traces"] == {
        "logged": statuses.count(200), "spooled": 0, "refused: engine busy": statuses.count(429)
    }  # fmt: skip


def test_the_openai_client_is_at_home(server: LiveServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
    ask: dict[str, Any] = {
        "model": "tendril", "prompt": "def a", "max_tokens": 8, "temperature": 0, "logprobs": 1,
    }  # fmt: skip
    assert [model.id for model in client.models.list()] == ["tendril"]
    whole = client.completions.create(**ask)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8
    chunks = list(client.completions.create(**ask, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    streamed = [lp for part in parts if part for lp in part.token_logprobs or []]
    assert whole.choices[0].logprobs is not None
    assert streamed == whole.choices[0].logprobs.token_logprobs
    with pytest.raises(openai.NotFoundError, match="expected 'tendril'"):
        client.completions.create(**(ask | {"model": "nope"}))
    with pytest.raises(openai.AuthenticationError, match="unknown key"):
        client.with_options(api_key="wrong").models.list()
    client.close()

    async def ask_async() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY) as remote:
            text: str = (await remote.completions.create(**ask)).choices[0].text
            return text

    assert asyncio.run(ask_async()) == whole.choices[0].text


def test_a_session_belongs_to_one_key(server: LiveServer) -> None:
    def session(key: str) -> str:
        headers = [
            (b"authorization", f"Bearer {key}".encode()), (b"x-tendril-session-id", b"s1"),
        ]  # fmt: skip
        body = stream_body(stream=False, max_tokens=1)
        reply = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers)
        session_id: str = server.trace(reply.headers["x-tendril-trace-id"]).session_id
        return session_id

    assert session(KEY) == session(KEY) != session("schlüssel")


def test_a_full_spool_answers_503_and_samples_nothing(checkpoint: Path, tmp_path: Path) -> None:
    class Away(MemoryLog):
        def append(self, records: Any) -> None:
            raise LogUnavailable("away")

    settings = make_settings(tmp_path, checkpoint, max_spooled=1)
    node = build_node(settings, Away(), *asyncio.run(load_engine(settings)))

    async def ask() -> tuple[httpx.Response, httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(create_app(node))
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://a", headers=headers
        ) as http:
            body = stream_body(stream=False, max_tokens=2)
            first = await http.post("/v1/completions", json=body)
            second = await http.post("/v1/completions", json=body)
            event = make_event(first.headers["x-tendril-trace-id"])
            return (
                first,
                second,
                await http.post(first.headers["x-tendril-feedback-url"], json=event),
            )

    first, second, feedback = asyncio.run(ask())
    assert first.status_code == 200
    for refused in (second, feedback):
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "log_unavailable"
        assert refused.headers["retry-after"] == "5"
    ledger = node.spool.ledger(0.0)
    assert ledger.outcomes["traces"] == {"logged": 0, "spooled": 1, "refused: spool full": 1}
    assert ledger.outcomes["feedback"] == {"logged": 0, "spooled": 0, "refused: spool full": 1}
    node.engine.close()
    node.spool.close()
