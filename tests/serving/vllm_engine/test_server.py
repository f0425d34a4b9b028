"""vLLM's own OpenAI server with the recorder below it: traces are what was sampled, always."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from kernels.scoring import Scorable, completion_logprobs, load_policy
from tendril.records import Trace
from tests.serving.live_server import KEY, LiveServer, assert_refused
from tests.serving.small_model import SILENCE

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # vLLM runs in this process, and has some
]
TOLERANCE = 1e-4
NUM_REQUESTS = 1_000
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@dataclass
class Asked:
    """One request, and what its client saw."""

    path: str
    body: dict[str, Any]
    hang_up: bool = False
    trace_id: str | None = None
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)


def mixed_requests(count: int) -> list[Asked]:
    """Chats and completions, streamed and not, with tools, choices, stops, and hang-ups."""
    rng = random.Random(0)
    asked = []
    for number in range(count):
        body: dict[str, Any] = {
            "model": "tendril",
            "max_tokens": rng.choice([1, 2, 8, 24]),
            "temperature": rng.choice([0.5, 1.0, 1.3]),
            "n": rng.choice([1, 1, 1, 4]),
            "stream": rng.random() < 0.5,
            "return_token_ids": True,
            "user": f"user-{number % 7}",
        }
        if rng.random() < 0.2:
            body["stop"] = [rng.choice(["e", "the", "é"])]
        if rng.random() < 0.5:
            body |= {"prompt": rng.choice(["def é", "import 日本", "x"]), "logprobs": 1}
            asked.append(Asked("/v1/completions", body, rng.random() < 0.15))
            continue
        body |= {"messages": [{"role": "user", "content": "hé"}], "logprobs": True}
        if rng.random() < 0.3:
            body["tools"] = [TOOL]
        asked.append(Asked("/v1/chat/completions", body, rng.random() < 0.15))
    return asked


async def ask(client: httpx.AsyncClient, asked: Asked) -> None:
    async with client.stream("POST", asked.path, json=asked.body) as reply:
        assert reply.status_code == 200, await reply.aread()
        asked.trace_id = reply.headers["x-tendril-trace-id"]
        if asked.hang_up:
            return
        async for event in events(reply, streamed=asked.body["stream"]):
            for choice in event.get("choices", []):
                index = choice["index"]
                asked.token_ids.setdefault(index, []).extend(choice.get("token_ids") or [])
                asked.logprobs.setdefault(index, []).extend(shown_logprobs(choice))


async def events(reply: httpx.Response, *, streamed: bool) -> AsyncIterator[dict[str, Any]]:
    if not streamed:
        yield json.loads(await reply.aread())
        return
    waiting = b""
    async for part in reply.aiter_raw():  # `aiter_lines` also ends a line at U+0085 and U+2028
        *lines, waiting = (waiting + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))
    assert not waiting


def shown_logprobs(choice: dict[str, Any]) -> list[float]:
    found = choice.get("logprobs") or {}
    if "token_logprobs" in found:
        return list(found["token_logprobs"])
    return [entry["logprob"] for entry in found.get("content") or []]


async def ask_all(server: LiveServer, requests: Sequence[Asked]) -> None:
    gate = asyncio.Semaphore(24)
    async with httpx.AsyncClient(
        base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=120
    ) as client:

        async def one(asked: Asked) -> None:
            async with gate:
                await ask(client, asked)

        await asyncio.gather(*(one(asked) for asked in requests))


def rescored_gap(checkpoint: Path, traces: Sequence[Trace]) -> float:
    """The largest difference to the learner's own pass over the same tokens."""
    model = load_policy(checkpoint)
    gaps = [0.0]
    for start in range(0, len(traces), 64):
        some = traces[start : start + 64]
        items = [
            Scorable(t.prompt_token_ids, t.completion_token_ids, t.sampling.temperature)
            for t in some
        ]
        # Chats may say nothing too, but silence is a choice of suggestions only.
        for is_suggestion in (True, False):
            mine = [i for i, t in enumerate(some) if (t.route == "suggestion") == is_suggestion]
            if not mine:
                continue
            scored = completion_logprobs(
                model, [items[i] for i in mine], SILENCE if is_suggestion else None
            )
            recorded = [value for i in mine for value in some[i].behavior_logprobs]
            gaps += [abs(float(a) - b) for a, b in zip(scored, recorded, strict=True)]
    return max(gaps)


@pytest.mark.slow
def test_a_thousand_mixed_requests_leave_exact_traces(
    vllm_server: LiveServer, checkpoint: Path
) -> None:
    before = vllm_server.settled()
    requests = mixed_requests(NUM_REQUESTS)
    asyncio.run(ask_all(vllm_server, requests))
    vllm_server.wait_idle(30)
    last = vllm_server.complete()
    vllm_server.trace(last.headers["x-tendril-trace-id"])
    traces = [t for t in vllm_server.records(Trace) if t.trace_id not in before]
    by_id = {trace.trace_id: trace for trace in traces}
    assert len(by_id) == len(traces), "a trace came twice"
    forced = [t for t in traces if t.exploration and t.exploration.forced]
    for asked in requests:
        choices = range(asked.body["n"])
        ids = [f"{asked.trace_id}.{i}" if i else asked.trace_id for i in choices]
        if not asked.hang_up:
            assert all(trace_id in by_id for trace_id in ids), asked
        for i, trace_id in enumerate(ids):
            if asked.hang_up or trace_id is None:
                continue
            trace = by_id[trace_id]
            assert list(trace.completion_token_ids) == asked.token_ids[i], asked
            if trace not in forced:
                assert trace.behavior_logprobs == pytest.approx(asked.logprobs[i], abs=1e-6), asked
    known = {asked.trace_id for asked in requests} | {last.headers["x-tendril-trace-id"]}
    unknown = [t for t in traces if t.trace_id.partition(".")[0] not in known]
    left = Counter(t.finish_reason for t in unknown)
    assert left.keys() <= {"cancelled_by_client"}, left  # those left before the headers
    assert known <= {trace_id.partition(".")[0] for trace_id in by_id}
    assert rescored_gap(checkpoint, [t for t in traces if t.completion_token_ids]) < TOLERANCE
    print(Counter(t.finish_reason for t in traces), len(forced), "forced")


def test_a_suggestion_explores_and_the_policys_own_logprob_is_kept(
    vllm_server: LiveServer, checkpoint: Path
) -> None:
    traces = [
        vllm_server.trace(
            vllm_server.complete(max_tokens=3, temperature=1.0).headers["x-tendril-trace-id"]
        )
        for _ in range(20)
    ]
    arms = Counter(t.exploration.forced for t in traces if t.exploration)
    assert sum(arms.values()) == 20
    assert arms[True] > 2
    assert all(t.exploration.share == 0.5 for t in traces if t.exploration)
    forced = [t for t in traces if t.exploration and t.exploration.forced]
    assert all(t.completion_token_ids[0] != SILENCE for t in forced)
    assert rescored_gap(checkpoint, traces) < TOLERANCE


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"temperature": 0}, "greedy"),
        ({"top_p": 0.5}, "top_p"),
        ({"top_k": 3}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
        ({"logit_bias": {"70": 3}}, "logit_bias"),
        ({"allowed_token_ids": [70, 71]}, "allowed_token_ids"),
        ({"bad_words": ["the"]}, "bad_words"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"structured_outputs": {"regex": "[a-z]{3}"}}, "structured_outputs"),
        ({}, None),
    ],
)
def test_what_the_learner_could_not_reproduce_is_marked(
    vllm_server: LiveServer, sampling: dict[str, Any], reason: str | None
) -> None:
    reply = vllm_server.complete(**({"temperature": 1.0} | sampling))
    assert reply.status_code == 200, reply.text
    assert vllm_server.trace(reply.headers["x-tendril-trace-id"]).untrainable == reason


def test_several_prompts_are_several_choices_of_one_request(vllm_server: LiveServer) -> None:
    reply = vllm_server.complete(prompt=["a", "b"], n=2, temperature=1.0)
    base = reply.headers["x-tendril-trace-id"]
    traces = [vllm_server.trace(f"{base}.{i}" if i else base) for i in range(4)]
    assert [trace.choice for trace in traces] == [0, 1, 2, 3]
    assert len({trace.prompt_token_ids for trace in traces}) == 2


def test_a_reserved_argument_of_a_client_does_not_reach_the_workers(
    vllm_server: LiveServer,
) -> None:
    reply = vllm_server.complete(vllm_xargs={"tendril_silence": "x"})
    assert reply.status_code == 200
    chat = {"model": "tendril", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2,
            "vllm_xargs": {"tendril_silence": [1.0]}}  # fmt: skip
    assert vllm_server.http.post("/v1/chat/completions", json=chat).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/metrics", "/tokenize", "/v1/load_lora_adapter", "/pause", "/collective_rpc", "/docs",
     "/openapi.json", "/version", "/invocations", "/inference/v1/generate"],
)  # fmt: skip
def test_vllms_other_routes_are_not_public(vllm_server: LiveServer, path: str) -> None:
    for method in ("GET", "POST"):
        assert_refused(vllm_server.http.request(method, path), 404)
    assert_refused(httpx.get(vllm_server.url + path), 401)


def test_a_session_is_followed_over_turns(vllm_server: LiveServer) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "first"}]

    def turn() -> Trace:
        body = {"model": "tendril", "messages": messages, "max_tokens": 4, "user": "u-session"}
        reply = vllm_server.http.post("/v1/chat/completions", json=body)
        messages.append(reply.json()["choices"][0]["message"])
        messages.append({"role": "user", "content": "and then?"})
        return vllm_server.trace(reply.headers["x-tendril-trace-id"])

    first, second, third = turn(), turn(), turn()
    assert {first.session_id} == {second.session_id, third.session_id}
    assert [t.turn for t in (first, second, third)] == [0, 1, 2]
    assert third.previous_trace_id == second.trace_id
