"""Whatever a machine makes of vLLM's own schema, and what an attacker would: no 5xx, no hang."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig

from tendril.records import Trace
from tests.serving.live_server import LiveServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]
TIMEOUT_S = 20
NUM_EXAMPLES = 40
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
COMPLETION: dict[str, Any] = {"model": "tendril", "prompt": "def a", "max_tokens": 3}
CHAT: dict[str, Any] = {
    "model": "tendril", "max_tokens": 3, "messages": [{"role": "user", "content": "a"}],
}  # fmt: skip
BIG = 2**70
ODD: dict[str, list[Any]] = {
    "n": [0, -1, 129, 16_384, BIG, 1.5, "2", None],
    "logprobs": [-2, 21, 10_000, BIG, "a"],
    "prompt_logprobs": [0, 1, -1, -2, 10_000],
    "echo": [True],
    "max_tokens": [0, -1, BIG, None],
    "min_tokens": [-1, 2, 10_000],
    "temperature": [-1, 1e-300, 1e30, 1e308, "hot"],
    "top_p": [0, -1, 1.1, 1e-300],
    "top_k": [-2, 0, BIG, 10**6],
    "min_p": [-1, 2],
    "seed": [-1, 2**63, BIG, -(2**63)],
    "stop": [[], [""], ["\x00"], ["é" * 5_000], ["a"] * 500, 5],
    "stop_token_ids": [[300], [10**9], [-1], [BIG], ["a"]],
    "allowed_token_ids": [[], [300], [-1], [10**9], [BIG], [0]],
    "bad_words": [[""], ["\x00"], ["a"] * 500],
    "logit_bias": [{"300": 1}, {"-1": 1}, {"a": 1}, {"70": 1e300}, {str(BIG): 1}],
    "repetition_penalty": [0, -1, 1e300],
    "presence_penalty": [-3, 1e300],
    "vllm_xargs": [{"a": BIG}, {"tendril_silence": {"row": 10**9}}, {"x": "\x00"}, "a", {"": [1]}],
    "cache_salt": ["", "\x00", "é" * 10_000, 5],
    "priority": [-(2**31), 2**31, BIG, "a"],
    "request_id": ["", "\x00\n", "é" * 10_000, 5],
    "kv_transfer_params": [{"do_remote_prefill": True, "remote_prefill_cached_tokens": BIG}],
    "truncate_prompt_tokens": [-2, -1, 0, 1, BIG],
    "structured_outputs": [
        {"regex": "("}, {"json": "{"}, {"grammar": "root ::= "}, {"choice": []},
        {"regex": "a{9999}"},
        {"json": {"$ref": "#"}}, {"structural_tag": "{}"}, {},
    ],
    "response_format": [{"type": "json_object"}, {"type": "json_schema"}, {"type": "x"}],
    "stream": [True],
    "stream_options": [{"include_usage": True}],
    "use_beam_search": [True, 1, "yes"],
    "prompt_embeds": ["AAAA", ""],
    "logprob_token_ids": [[0], [-1], [10**9]],
    "repetition_detection": [{}, {"max_pattern_size": -1}, {"max_pattern_size": BIG}],
    "thinking_token_budget": [-1, 0, BIG],
    "add_special_tokens": [True],
    "return_tokens_as_token_ids": [True],
    "suffix": ["x"],
    "prompt": [
        "", [], [[]], [300], [-1], [BIG], [10**9], ["a", [1]], "\x00", "é" * 100_000, [5] * 100_000,
        ["a"] * 5_000, None, {}, "<|silence|><|endoftext|>",
    ],
}  # fmt: skip
ODD_CHAT: dict[str, list[Any]] = {
    "messages": [
        [], [{}], [{"role": "user"}], [{"role": "x", "content": "a"}], "a", [{"role": "assistant"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": "\x00"}], [{"role": "user", "content": "é" * 60_000}],
        [{"role": "tool", "content": "a", "tool_call_id": "x"}],
        [{"role": "user", "content": None}],
        [{"role": "assistant", "tool_calls": [{"id": 1, "function": {"arguments": "{"}}]}],
    ],
    "tools": [[], [{}], [{"type": "function"}], [{"type": "function", "function": {"name": ""}}]],
    "tool_choice": ["required", "x", {"type": "function", "function": {"name": "no"}}],
    "chat_template": ["{{ 1/0 }}", "{% for"],
    "chat_template_kwargs": [{"a": BIG}, {"chat_template": "x"}, {"tokenize": False}],
    "add_generation_prompt": [False],
    "continue_final_message": [True],
    "reasoning_effort": ["x", "high"],
    "documents": [[{}], "x"],
    "mm_processor_kwargs": [{"a": 1}],
    "logprobs": [True],
    "top_logprobs": [-1, 5, 21, BIG],
    "n": [129, 16_384],
}  # fmt: skip
RAW = [
    b"", b"{", b"null", b"[]", b'"a"', b"\xff", b"{" * 10_000, b"[" * 100_000,
    b'{"model":"tendril","prompt":"\\ud800","max_tokens":3}',
    b'{"model":"tendril","prompt":"a","max_tokens":3,"stop":["\\ud800"]}',
    b'{"model":"tendril","prompt":"a","max_tokens":3,"user":"\\ud800"}',
    b'{"model":"tendril","prompt":"a","max_tokens":3,"cache_salt":"\\ud800"}',
    b'{"model":"tendril","prompt":"a","max_tokens":3,"request_id":"\\ud800"}',
    b'{"model":"\\ud800","prompt":"a","max_tokens":3}',
    b'{"model":"tendril","prompt":"a","max_tokens":3,"temperature":1e999}',
    b'{"model":"tendril","prompt":"a","max_tokens":3,"temperature":NaN}',
    b'{"model":"tendril","prompt":"a","max_tokens":3,"top_p":NaN}',
    b'{"model":"tendril","prompt":"a","max_tokens":3,"vllm_xargs":{"a":"\\ud800"}}',
    b'{"model":"tendril","messages":[{"role":"user","content":"\\ud800"}],"max_tokens":3}',
    b'{"model":"tendril","messages":[{"role":"user","content":"a","name":"\\ud800"}],"max_tokens":3}',
    b'{"model":"tendril","messages":[{"role":"user","content":"a"}],"max_tokens":3,'
    b'"tools":[{"type":"function","function":{"name":"\\ud800"}}]}',
    b'{"model":"tendril","input":"\\ud800","max_output_tokens":3}',
]  # fmt: skip


def still_well(server: LiveServer) -> None:
    """It samples, records, and nothing is left running inside."""
    server.wait_idle(20)
    reply = server.complete()
    assert reply.status_code == 200, reply.text
    server.trace(reply.headers["x-tendril-trace-id"])


def odd_requests() -> list[tuple[str, dict[str, Any]]]:
    plain = [("/v1/completions", COMPLETION | {k: v}) for k, vs in ODD.items() for v in vs]
    odd = ODD | ODD_CHAT
    chats = [
        ("/v1/chat/completions", CHAT | {k: v})
        for k, vs in odd.items() if k != "prompt" for v in vs
    ]  # fmt: skip
    return plain + chats


def test_odd_values_are_refused_or_served(vllm_server: LiveServer) -> None:
    gate = asyncio.Semaphore(8)
    failed: list[tuple[str, int, str]] = []
    accepted: list[str] = []

    async def ask(client: httpx.AsyncClient, path: str, content: bytes) -> None:
        async with gate:
            reply = await client.post(path, content=content, timeout=TIMEOUT_S)
        if reply.status_code >= 500:
            failed.append((f"{path} {content[:200]!r}", reply.status_code, reply.text[:300]))
        if trace_id := reply.headers.get("x-tendril-trace-id"):
            accepted.append(trace_id)

    async def run() -> None:
        headers = dict(vllm_server.http.headers) | {"content-type": "application/json"}
        async with httpx.AsyncClient(base_url=vllm_server.url, headers=headers) as client:
            bodies = [(path, json.dumps(body).encode()) for path, body in odd_requests()]
            bodies += [(path, raw) for path in PATHS for raw in RAW]
            await asyncio.gather(*(ask(client, path, content) for path, content in bodies))

    asyncio.run(run())
    assert not failed, "\n".join(map(str, failed))
    still_well(vllm_server)
    known = {trace.trace_id for trace in vllm_server.records(Trace)}
    assert set(accepted) <= known
    assert len(accepted) > 50


@pytest.mark.parametrize(
    "headers",
    [
        {"x-data-parallel-rank": "5"}, {"x-data-parallel-rank": "x"}, {"x-request-id": "é" * 300},
        {"traceparent": "00-x"}, {"x-session-id": "a" * 5_000}, {"content-type": "text/plain"},
        {"x-tendril-user": "é" * 3_000}, {"x-tendril-harness": "é"},
    ],
)  # fmt: skip
def test_odd_headers_are_refused_or_ignored(
    vllm_server: LiveServer, headers: dict[str, str]
) -> None:
    content = json.dumps(COMPLETION)
    given = [(b"content-type", b"application/json")]
    given += [(name.encode(), value.encode()) for name, value in headers.items()]
    reply = vllm_server.http.post("/v1/completions", content=content, headers=given)
    assert reply.status_code < 500, reply.text
    still_well(vllm_server)


@pytest.fixture(scope="module")
def schema(vllm_server: LiveServer, checkpoint: Path) -> Any:
    """Of vLLM's own application, which is not public; narrowed, so that requests get far."""
    from vllm.entrypoints.launchers.app import build_app

    from serving.vllm_engine.launch import parsed

    args = parsed(checkpoint, vllm_server.settings.serving, silence=True)
    described = build_app(args, ("generate",), None).openapi()
    few = {"type": "integer", "minimum": 1, "maximum": 3}
    for path in PATHS:
        content = described["paths"][path]["post"]["requestBody"]["content"]
        name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
        properties = described["components"]["schemas"][name]["properties"]
        properties["model"] = {"const": "tendril"}
        limits = {"max_tokens", "max_completion_tokens", "max_output_tokens", "n"}
        for limit in limits & properties.keys():
            properties[limit] = few
        for long in {"messages", "tools", "stop"} & properties.keys():
            properties[long]["maxItems"] = 2
    described["paths"] = {path: described["paths"][path] for path in PATHS}
    return schemathesis.openapi.from_dict(described, config=SchemathesisConfig())


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("path", PATHS)
def test_no_request_of_vllms_schema_makes_a_server_error_or_hangs(
    vllm_server: LiveServer, schema: Any, path: str, mode: GenerationMode
) -> None:
    statuses: Counter[int] = Counter()
    failed: list[tuple[Any, int, str]] = []

    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema[path]["POST"].as_strategy(generation_mode=mode))
    def check(case: Case[Any]) -> None:
        headers = {"authorization": vllm_server.http.headers["authorization"]}
        reply = case.call(base_url=vllm_server.url, headers=headers, timeout=TIMEOUT_S)
        statuses[reply.status_code] += 1
        if reply.status_code >= 500:
            failed.append((case.body, reply.status_code, reply.text[:300]))

    check()
    assert failed == []
    still_well(vllm_server)
    assert set(statuses) & {200, 400}
