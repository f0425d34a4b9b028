"""The official clients of OpenAI and Anthropic against vLLM: their normal flows, unchanged."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tendril.records import Trace
from tests.serving.live_server import KEY, LiveServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]
ASK: dict[str, Any] = {
    "model": "tendril", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6,
}  # fmt: skip
RESPOND: dict[str, Any] = {"model": "tendril", "input": "hello", "max_output_tokens": 6}
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
LONG = {"max_tokens": 400, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client(vllm_server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{vllm_server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture
def claude(vllm_server: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=vllm_server.url, api_key=KEY, max_retries=0) as made:
        yield made


def trace_of(server: LiveServer, raw: Any) -> Trace:
    return server.trace(raw.headers["x-tendril-trace-id"])


def test_a_chat_and_its_headers(vllm_server: LiveServer, client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**ASK)
    reply = raw.parse()
    trace = trace_of(vllm_server, raw)
    assert reply.usage is not None
    assert len(trace.completion_token_ids) == reply.usage.completion_tokens
    assert raw.headers["x-tendril-policy-version"] == "1"
    assert raw.headers["x-tendril-feedback-url"].startswith("/v1/feedback?token=")
    assert trace.route == "chat"


def test_a_stream_says_what_the_whole_reply_says(
    vllm_server: LiveServer, client: openai.OpenAI
) -> None:
    whole = client.chat.completions.create(**ASK, temperature=0)
    raw = client.chat.completions.with_raw_response.create(
        **ASK, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(raw.parse())
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage == whole.usage
    assert (
        len(trace_of(vllm_server, raw).completion_token_ids) == chunks[-1].usage.completion_tokens
    )


@pytest.mark.parametrize(
    ("choice", "is_called"),
    [("auto", None), ("none", False), ("required", True),
     ({"type": "function", "function": {"name": "look"}}, True)],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_tools(
    vllm_server: LiveServer,
    client: openai.OpenAI,
    choice: Any,
    is_called: bool | None,
    stream: bool,
) -> None:
    """A random model calls nothing of itself; a grammar makes it, and the trace says so."""
    asked = ASK | {"max_tokens": 100, "tools": [LOOK], "tool_choice": choice}
    raw = client.chat.completions.with_raw_response.create(**asked, stream=stream)
    parsed: Any = raw.parse()
    if stream:
        deltas = [chunk.choices[0].delta for chunk in parsed if chunk.choices]
        names = [call.function.name for delta in deltas for call in delta.tool_calls or []]
    else:
        names = [call.function.name for call in parsed.choices[0].message.tool_calls or []]
    trace = trace_of(vllm_server, raw)
    if is_called is not None:
        assert (trace.untrainable == "structured_outputs") is is_called
        if trace.finish_reason != "length":  # else half a call, which vLLM's parser may not show
            assert ("look" in names) is is_called


def test_logprobs_and_choices(vllm_server: LiveServer, client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        **ASK, n=3, logprobs=True, top_logprobs=2
    )
    base = raw.headers["x-tendril-trace-id"]
    for choice in raw.parse().choices:
        trace = vllm_server.trace(f"{base}.{choice.index}" if choice.index else base)
        assert choice.logprobs is not None
        content = choice.logprobs.content or []
        assert [e.logprob for e in content] == pytest.approx(trace.behavior_logprobs, abs=1e-6)
        assert all(len(entry.top_logprobs) == 2 for entry in content)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError),
        ({"messages": []}, openai.BadRequestError),
        ({"temperature": -9}, openai.BadRequestError),
        ({"max_tokens": 10_000}, openai.BadRequestError),
        ({"n": 129}, openai.BadRequestError),
        ({"extra_body": {"use_beam_search": True}}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "x" * 70_000}]}, openai.APIStatusError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_are_the_clients_own_exceptions(
    client: openai.OpenAI, change: dict[str, Any], error: type[openai.APIStatusError], stream: bool
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(**(ASK | change), stream=stream)
    statuses = {openai.NotFoundError: 404, openai.BadRequestError: 400, openai.APIStatusError: 413}
    assert caught.value.status_code == statuses[error]
    assert caught.value.response.json()["error"]["message"]


def test_a_wrong_key_is_an_authentication_error(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    with pytest.raises(openai.AuthenticationError, match="unknown key"):
        client.with_options(api_key="wrong").chat.completions.create(**ASK)
    with pytest.raises(anthropic.AuthenticationError):
        claude.with_options(api_key="wrong").messages.create(**ASK)


def test_a_client_that_runs_out_of_patience_ends_the_sampling(
    vllm_server: LiveServer, client: openai.OpenAI
) -> None:
    before = {trace.trace_id for trace in vllm_server.records(Trace)}
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.1).chat.completions.create(**(ASK | LONG), n=4)
    vllm_server.wait_idle()
    vllm_server.trace(vllm_server.complete().headers["x-tendril-trace-id"])
    new = [t for t in vllm_server.records(Trace) if t.trace_id not in before and t.route == "chat"]
    assert [trace.finish_reason for trace in new] == ["cancelled_by_client"] * 4


def test_async_clients_chat_at_once_and_stream(vllm_server: LiveServer) -> None:
    async def run() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{vllm_server.url}/v1", api_key=KEY) as made:
            asked = ASK | {"temperature": 0}
            replies = await asyncio.gather(
                *(made.chat.completions.create(**asked) for _ in range(16))
            )
            stream = await made.chat.completions.create(**asked, stream=True)
            streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return [reply.choices[0].message.content for reply in replies] + ["".join(streamed)]

    assert len(set(asyncio.run(run()))) == 1


def test_a_response_whole_and_streamed(vllm_server: LiveServer, client: openai.OpenAI) -> None:
    raw = client.responses.with_raw_response.create(**RESPOND, temperature=0)
    whole = raw.parse()
    assert len(trace_of(vllm_server, raw).completion_token_ids) == whole.usage.output_tokens
    raw = client.responses.with_raw_response.create(**RESPOND, temperature=0, stream=True)
    events = list(raw.parse())
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == whole.output_text
    assert trace_of(vllm_server, raw).route == "chat"


def test_a_response_is_continued_by_its_id_or_with_its_history(
    vllm_server: LiveServer, client: openai.OpenAI
) -> None:
    """By id only where vLLM is told to keep replies, which the server of these tests is."""
    asked: list[Any] = [{"role": "user", "content": "one of a kind"}]
    raw = client.responses.with_raw_response.create(**(RESPOND | {"input": asked}))
    first, reply = trace_of(vllm_server, raw), raw.parse()
    by_id = RESPOND | {"input": "more", "previous_response_id": reply.id}
    asked += [{"role": "assistant", "content": reply.output_text}]
    asked += [{"role": "user", "content": "more"}]
    for body in (by_id, RESPOND | {"input": asked}):
        second = trace_of(vllm_server, client.responses.with_raw_response.create(**body))
        assert (second.session_id, second.turn) == (first.session_id, 1)
        assert second.previous_trace_id == first.trace_id


def test_anthropics_messages_whole_and_streamed(
    vllm_server: LiveServer, claude: anthropic.Anthropic
) -> None:
    raw = claude.messages.with_raw_response.create(**ASK)
    reply = raw.parse()
    assert len(trace_of(vllm_server, raw).completion_token_ids) == reply.usage.output_tokens
    tool: Any = {"name": "look", "input_schema": {"type": "object"}}
    with claude.messages.stream(**ASK, tools=[tool]) as stream:
        message = stream.get_final_message()
        trace_id = stream.response.headers["x-tendril-trace-id"]
    assert message.role == "assistant"
    trace = vllm_server.trace(trace_id)
    assert trace.route == "chat"
    assert len(trace.completion_token_ids) == message.usage.output_tokens


def test_anthropics_refusals(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(**(ASK | {"max_tokens": 5_000}))
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(**(ASK | {"model": "claude"}))


def test_a_full_queue_is_a_rate_limit(vllm_server: LiveServer) -> None:
    """More choices than may wait, all at once: some are served, the others may come again."""

    async def run() -> list[Any]:
        async with openai.AsyncOpenAI(
            base_url=f"{vllm_server.url}/v1", api_key=KEY, max_retries=0
        ) as made:
            asking = (made.chat.completions.create(**ASK, n=64) for _ in range(12))
            return await asyncio.gather(*asking, return_exceptions=True)

    ends = asyncio.run(run())
    refused = [end for end in ends if isinstance(end, openai.RateLimitError)]
    assert 0 < len(refused) < len(ends)
    assert all(error.response.headers["retry-after"] == "1" for error in refused)
    others = [end for end in ends if isinstance(end, Exception) and end not in refused]
    assert others == []
    assert json.loads(refused[0].response.content)["error"]["message"]
    vllm_server.wait_idle()
