"""Whatever comes in: a clear 4xx with what, expected and got."""

import json
import socket
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.any_json import anything
from tests.serving.live_server import (
    LiveServer,
    assert_refused,
    post_json,
)

DEEP = "[" * 100_000 + "]" * 100_000
LESS_DEEP = '{"a":' * 400 + "1" + "}" * 400


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"model": "gpt-9"}, 404, ("model: expected 'tendril'", "got 'gpt-9'")),
        ({"max_tokens": -5}, 400, ("max_tokens", "greater than or equal to 1", "got -5")),
        ({"max_tokens": 0}, 400, ("max_tokens", "got 0")),
        ({"max_tokens": 10**30}, 400, ("expected 1 to 128 tokens",)),
        ({"max_tokens": "many"}, 400, ("max_tokens", "got 'many'")),
        ({"prompt": "a b" * 100}, 400, ("prompt: expected 1 to 128 tokens", "got ")),
        ({"prompt": ""}, 400, ("prompt: expected 1 to 128 tokens", "got 0")),
        ({"prompt": []}, 400, ("prompt: expected 1 to 128 tokens", "got 0")),
        ({"prompt": [5, 300]}, 400, ("prompt: expected token ids below", "got 300")),
        ({"prompt": [5, 10**30]}, 400, ("prompt",)),
        ({"prompt": [5, -1]}, 400, ("prompt", "got -1")),
        ({"prompt": [[5], []]}, 400, ("prompt: expected 1 to 128 tokens", "got 0")),
        ({"prompt": [[5], "a"]}, 400, ("prompt",)),
        ({"prompt": ["a"] * 65}, 400, ("prompt: expected at most 64 completions", "got 65")),
        ({"prompt": None}, 400, ("prompt",)),
        ({"prompt": "\ud800"}, 400, ("body", "surrogate")),
        ({"temperature": -0.1}, 400, ("temperature", "got -0.1")),
        ({"temperature": 99}, 400, ("temperature", "got 99")),
        ({"top_p": 0}, 400, ("top_p", "got 0")),
        ({"seed": 2**63}, 400, ("seed",)),
        ({"n": 9}, 400, ("n:", "got 9")),
        ({"n": 0}, 400, ("n:", "got 0")),
        ({"best_of": 2}, 400, ("best_of", "got 2")),
        ({"echo": True, "logprobs": 0}, 400, ("echo", "a prompt is not scored")),
        ({"logprobs": 6}, 400, ("logprobs", "got 6")),
        ({"suffix": "b"}, 400, ("suffix: expected a model with fill-in-the-middle tokens",)),
        ({"presence_penalty": 0.5}, 400, ("presence_penalty", "vLLM", "got 0.5")),
        ({"logit_bias": {"5": 1}}, 400, ("logit_bias", "vLLM")),
        ({"stream_options": {}}, 400, ("stream_options", "stream: true")),
        ({"top_k": -2}, 400, ("top_k", "got -2")),
        ({"min_p": 1.5}, 400, ("min_p", "got 1.5")),
        ({"stop": ["a"] * 5}, 400, ("stop",)),
        ({"stop": [""]}, 400, ("stop",)),
        ({"stop": "s" * 513}, 400, ("stop",)),
        ({"stop": 7}, 400, ("stop",)),
        ({"user": "u" * 129}, 400, ("user",)),
        ({"user": "\udfff"}, 400, ("body", "surrogate")),
    ],
)  # fmt: skip
def test_a_completion_that_cannot_be_is_refused_in_words(
    server: LiveServer, change: dict[str, Any], status: int, words: tuple[str, ...]
) -> None:
    body = {"model": "tendril", "prompt": "def a", "max_tokens": 3} | change
    response = server.http.post(
        "/v1/completions",
        content=json.dumps(body),
        headers={"content-type": "application/json"},
    )
    assert_refused(response, status, *words)


HELLO = {"role": "user", "content": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"model": "gpt-9"}, 404, ("model: expected 'tendril'",)),
        ({"messages": []}, 400, ("messages",)),
        ({"messages": None}, 400, ("messages",)),
        ({"messages": [{"role": "king", "content": "a"}]}, 400, ("messages.0", "role")),
        ({"messages": [{"role": "user"}]}, 400, ("messages.0.user.content",)),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, 400, ("nothing but text",)),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, ("body", "surrogate")),
        ({"messages": [HELLO] * 50}, 400, ("messages: expected 1 to 128 tokens", "got ")),
        ({"max_tokens": 0}, 400, ("max_tokens", "got 0")),
        ({"max_completion_tokens": 128}, 400, ("expected 1 to 128 tokens", "+ 128")),
        ({"top_logprobs": 3}, 400, ("top_logprobs: expected only with logprobs",)),
        ({"logprobs": True, "top_logprobs": 21}, 400, ("top_logprobs", "got 21")),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, 400, ("vLLM",)),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, 400, ("tools.0.type",)),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, ("tools.0",)),
        ({"tool_choice": "auto"}, 400, ("tool_choice: expected only with tools",)),
        ({"tools": [TOOL], "tool_choice": "any"}, 400, ("tool_choice",)),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, 400,
         ("tool_choice: expected one of ['f'], got 'g'",)),
        ({"functions": [{"name": "f"}]}, 400, ("expected their successors, tools",)),
        ({"frequency_penalty": 1}, 400, ("frequency_penalty", "vLLM")),
        ({"modalities": ["text", "audio"]}, 400, ("modalities",)),
    ],
)  # fmt: skip
def test_a_chat_that_cannot_be_is_refused_in_words(
    server: LiveServer, change: dict[str, Any], status: int, words: tuple[str, ...]
) -> None:
    body = {"model": "tendril", "messages": [HELLO], "max_tokens": 3} | change
    assert_refused(post_json(server, "/v1/chat/completions", body), status, *words)


def test_fields_that_change_no_token_are_ignored(server: LiveServer) -> None:
    ignored = {
        "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "reasoning_effort": "low",
        "prompt_cache_key": "k", "stop": None, "temperature": None, "logit_bias": None,
    }  # fmt: skip
    body = {"model": "tendril", "messages": [HELLO], "max_tokens": 3} | ignored
    reply = post_json(server, "/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/feedback"])
@pytest.mark.parametrize(
    "content",
    ["{", "", "[]", "[1]", "null", "7", '"text"', "{}", '{"model": NaN}', DEEP[:60_000], LESS_DEEP,
     '{"events": {}}', '{"events": []}', '{"a": 1' + "0" * 5000 + "}", "\ufeff{}", "\x00"],
)  # fmt: skip
def test_a_body_that_is_no_request_is_refused(server: LiveServer, path: str, content: str) -> None:
    headers = {"content-type": "application/json"}
    assert_refused(server.http.post(path, content=content, headers=headers), 400)


def test_bytes_that_are_not_utf8_are_refused(server: LiveServer) -> None:
    headers = {"content-type": "application/json"}
    response = server.http.post("/v1/completions", content=b'{"model": "\xff"}', headers=headers)
    assert_refused(response, 400)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "max_tokens", "seed"])
def test_numbers_that_are_none_are_refused(server: LiveServer, field: str, number: str) -> None:
    content = f'{{"model": "tendril", "prompt": "a", "{field}": {number}}}'
    headers = {"content-type": "application/json"}
    assert_refused(server.http.post("/v1/completions", content=content, headers=headers), 400)


def test_a_wrong_content_type_is_named_and_the_body_is_not_repeated(server: LiveServer) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "nonsense"):
        response = server.http.post(
            "/v1/completions", content=b'{"model":"tendril"}', headers={"content-type": kind}
        )
        assert_refused(response, 400, f"expected content-type application/json, got {kind}")
        assert "model" not in response.text
    response = server.http.post("/v1/completions", content=b"{}")
    assert_refused(response, 400, "expected content-type application/json, got none")


def test_no_word_of_the_validation_library_reaches_a_client(server: LiveServer) -> None:
    wrong: dict[str, Any] = {
        "presence_penalty": 1, "stream_options": {}, "n": "x", "max_tokens": 0,
    }  # fmt: skip
    for field, value in wrong.items():
        body = {"model": "tendril", "prompt": "a", field: value}
        message = post_json(server, "/v1/completions", body).json()["error"]["message"]
        assert "Value error" not in message
        assert "Input should" not in message
        assert message.startswith(f"{field}: ")


def test_keys_are_asked_for(server: LiveServer) -> None:
    body = {"model": "tendril", "prompt": "a"}
    for header, got in (
        (None, "got none"), ("Bearer", "an unknown key"), ("Bearer nope", "an unknown key"),
        ("Bearer ключ", "an unknown key"), ("Bearer \xff\xfe", "an unknown key"),
    ):  # fmt: skip
        headers = [(b"authorization", header.encode())] if header else []
        response = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers)
        assert_refused(response, 401, "expected 'Bearer <application key>'", got)
    headers = [(b"authorization", "Bearer schlüssel".encode())]
    assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200


def test_unknown_routes_and_methods_are_named(server: LiveServer) -> None:
    assert_refused(server.http.get("/v2/nothing"), 404, "GET /v2/nothing")
    assert_refused(server.http.post("/completions"), 404, "Not Found; paths begin with /v1")
    for path in ("/v1/responses", "/v1/messages"):
        assert_refused(server.http.post(path, json={}), 404, 'only with serving.engine = "vllm"')
    response = server.http.get("/v1/completions")
    assert_refused(response, 405, "GET /v1/completions")
    assert response.headers["allow"] == "POST"


def test_a_megabyte_is_refused_declared_or_streamed(server: LiveServer) -> None:
    prompt = "a" * 1_000_000
    words = ("expected at most 64000 bytes",)
    assert_refused(server.complete(prompt=prompt), 413, *words, "got 1000")
    chunks = (b" " * 10_000 for _ in range(100))
    response = server.http.post("/v1/completions", content=chunks)
    assert_refused(response, 413, *words, "got over 64000")
    assert server.complete().status_code == 200


@pytest.mark.parametrize("lengths", ["5\r\ncontent-length: 7", "-1", "1e3", "0x10", "²", "9" * 30])
def test_lengths_that_disagree_or_are_none_are_refused(server: LiveServer, lengths: str) -> None:
    with socket.create_connection(("127.0.0.1", server.settings.serving.port), 5) as raw:
        raw.sendall(
            f"POST /v1/models HTTP/1.1\r\nhost: a\r\ncontent-length: {lengths}\r\n\r\n".encode()
        )
        status = raw.recv(100).split()[1]
    assert status in (b"400", b"413")


def test_a_client_that_leaves_in_the_middle_of_its_body_harms_nobody(server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", server.settings.serving.port), 5) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 99\r\n\r\n{")
    assert server.complete().status_code == 200


likely = {
    "model": st.just("tendril"),
    "prompt": st.text(min_size=1, max_size=5) | st.lists(st.integers(-2, 310), max_size=4),
    "max_tokens": st.integers(-1, 4),
    "temperature": st.floats(0, 2),
    "stop": st.none() | st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=5),
    "seed": st.integers(),
    "logprobs": st.sampled_from([None, 0, 1]),
    "stream": st.booleans(),
}
completions = st.fixed_dictionaries(
    {"model": likely["model"], "prompt": likely["prompt"] | anything},
    optional={
        name: value | anything for name, value in likely.items() if name not in ("model", "prompt")
    },
)


chats = st.fixed_dictionaries(
    {
        "model": likely["model"],
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
                optional={"content": st.text(max_size=5) | anything, "tool_calls": anything,
                          "tool_call_id": st.text(max_size=2)},
            ),
            max_size=3,
        ) | anything,
    },
    optional={name: likely[name] | anything for name in ("stream", "stop", "temperature")}
    | {
        "max_tokens": st.integers(1, 3),
        "n": st.integers(0, 3),
        "tools": st.just([TOOL]) | anything,
        "tool_choice": st.sampled_from(["none", "auto", "required"]) | anything,
        "logprobs": st.booleans(),
        "top_logprobs": st.integers(0, 3),
        "response_format": anything,
    },
)  # fmt: skip


@settings(max_examples=40)
@given(body=chats)
def test_no_chat_body_makes_a_server_error(server: LiveServer, body: Any) -> None:
    response = post_json(server, "/v1/chat/completions", body)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]


@settings(max_examples=30)
@given(body=completions | anything)
def test_no_completion_body_makes_a_server_error(server: LiveServer, body: Any) -> None:
    response = post_json(server, "/v1/completions", body)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]
