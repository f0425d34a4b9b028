"""Chat as the official client meets it: messages, tools, streams, several choices, log-probs."""

import json
from typing import Any

import openai
import pytest

from serving.engine import EngineBusy, EngineRequest
from tendril.log import LogUnavailable
from tendril.records import ToolCall
from tests.serving.scripted import Line, Stage

ASK: dict[str, Any] = {"model": "tendril", "messages": [{"role": "user", "content": "hello"}]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Look it up.",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
]
CALL = '<tool_call>\n{"name": "search", "arguments": {"q": "naïve"}}\n</tool_call>'


def test_a_message_is_answered_with_a_message(stage: Stage) -> None:
    stage.says("Good day €")
    with stage.client() as client:
        raw = client.chat.completions.with_raw_response.create(**ASK, max_completion_tokens=50)
    reply = raw.parse()
    [choice] = reply.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Good day €")
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert reply.object == "chat.completion"
    assert reply.usage is not None
    [trace] = stage.traces
    [request] = stage.engine.requests
    assert trace.trace_id == raw.headers["x-tendril-trace-id"]
    assert reply.id == f"chatcmpl-{trace.trace_id}"
    assert trace.route == "chat"
    assert trace.prompt_token_ids == request.prompt_token_ids
    assert trace.chat_template_digest == stage.codec.chat_template.digest
    prompt = stage.codec.tokenizer.decode(list(request.prompt_token_ids))
    assert prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert reply.usage.prompt_tokens == len(trace.prompt_token_ids)
    assert reply.usage.completion_tokens == len(trace.completion_token_ids)
    assert request.max_tokens == 50


def test_without_a_limit_a_reply_may_take_what_fits(stage: Stage) -> None:
    with stage.client() as client:
        client.chat.completions.create(**ASK)
    [request] = stage.engine.requests
    assert len(request.prompt_token_ids) + request.max_tokens == 4096


def test_the_end_mark_of_the_default_template_ends_a_reply(stage: Stage) -> None:
    stage.says("yes<|im_end|>\n<|im_start|>user")
    with stage.client() as client:
        [choice] = client.chat.completions.create(**ASK).choices
    assert (choice.message.content, choice.finish_reason) == ("yes", "stop")


def test_every_kind_of_message_reaches_the_template(stage: Stage) -> None:
    call = {"id": "c1", "type": "function",
            "function": {"name": "search", "arguments": '{"q": "x"}'}}  # fmt: skip
    messages: Any = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
         "name": "eve"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]  # fmt: skip
    with stage.client() as client:
        client.chat.completions.create(model="tendril", messages=messages)
    prompt = stage.codec.tokenizer.decode(list(stage.engine.requests[0].prompt_token_ids))
    assert prompt == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "search", "arguments": {"q": "x"}}'
        "\n</tool_call><|im_end|>\n<|im_start|>tool\nfound<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_stream_says_the_same_as_a_whole_reply(stage: Stage) -> None:
    stage.says("naïve €")
    with stage.client() as client:
        chunks = list(client.chat.completions.create(
            **ASK, stream=True, stream_options={"include_usage": True}, logprobs=True,
        ))  # fmt: skip
        whole = client.chat.completions.create(**ASK, logprobs=True)
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(deltas) == whole.choices[0].message.content == "naïve €"
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "stop"]
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{stage.traces[0].trace_id}"}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    assert chunks[0].usage is None
    streamed = [
        token
        for chunk in chunks[:-1]
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content or []
    ]
    assert whole.choices[0].logprobs is not None
    assert streamed == whole.choices[0].logprobs.content
    joined = b"".join(bytes(token.bytes or []) for token in streamed)
    assert joined == "naïve €".encode()


def test_top_logprobs_are_the_engines(stage: Stage) -> None:
    stage.says("a€")
    with stage.client() as client:
        reply = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2)
    assert reply.choices[0].logprobs is not None
    tokens = reply.choices[0].logprobs.content or []
    assert [token.token for token in tokens] == ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
    assert [[top.logprob for top in token.top_logprobs] for token in tokens] == [[-0.5, -1.5]] * 4
    assert tokens[0].top_logprobs[1].token == "b"


def test_a_call_of_a_tool_is_one_for_the_client_and_in_the_trace(stage: Stage) -> None:
    stage.says(f"Let me look.\n{CALL}")
    with stage.client() as client:
        [choice] = client.chat.completions.create(**ASK, tools=TOOLS).choices  # type: ignore[arg-type]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("search", {"q": "naïve"})
    [trace] = stage.traces
    assert trace.finish_reason == "tool_calls"
    assert trace.tool_calls == (ToolCall(name="search", valid=True),)
    text = stage.codec.tokenizer.decode(list(trace.completion_token_ids))
    assert text == f"Let me look.\n{CALL}"


def test_a_streamed_call_is_named_first_and_the_clients_helper_reads_it(stage: Stage) -> None:
    stage.says(f"Look. {CALL}\n{CALL}")
    ask: Any = ASK | {"tools": TOOLS}
    with stage.client() as client:
        chunks = list(client.chat.completions.create(**ask, stream=True))
        with client.chat.completions.stream(**ask) as stream:
            final = stream.get_final_completion()
    deltas = [d for chunk in chunks for d in chunk.choices[0].delta.tool_calls or []]
    names = [(d.index, d.function.name, d.function.arguments) for d in deltas if d.function]
    arguments = '{"q": "naïve"}'
    assert names == [
        (0, "search", ""), (0, None, arguments), (1, "search", ""), (1, None, arguments),
    ]  # fmt: skip
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Look."
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    calls = final.choices[0].message.tool_calls or []
    assert [call.function.arguments for call in calls] == [arguments, arguments]
    assert len({call.id for call in calls}) == 2


def test_a_broken_call_stays_content_and_is_recorded_as_invalid(stage: Stage) -> None:
    stage.says("<tool_call>{oops}</tool_call>")
    ask: Any = ASK | {"tools": TOOLS}
    with stage.client() as client:
        [choice] = client.chat.completions.create(**ask).choices
        chunks = list(client.chat.completions.create(**ask, stream=True))
    assert choice.message.content == "<tool_call>{oops}</tool_call>"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == choice.message.content
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert [trace.tool_calls for trace in stage.traces] == [(ToolCall(name=None, valid=False),)] * 2


@pytest.mark.parametrize(
    ("choice", "prefill", "said"),
    [
        ("required", '<tool_call>\n{"name": "', 'search", "arguments": {"q": 1}}\n</tool_call>'),
        ({"type": "function", "function": {"name": "search"}},
         '<tool_call>\n{"name": "search", "arguments": ', '{"q": 1}}\n</tool_call> and more'),
    ],
)  # fmt: skip
def test_a_required_call_is_begun_in_the_prompt(
    stage: Stage, choice: Any, prefill: str, said: str
) -> None:
    stage.says(said)
    with stage.client() as client:
        reply = client.chat.completions.create(**ASK, tools=TOOLS, tool_choice=choice)  # type: ignore[arg-type]
    prompt = stage.codec.tokenizer.decode(list(stage.traces[0].prompt_token_ids))
    assert prompt.endswith(f"<|im_start|>assistant\n{prefill}")
    [call] = reply.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"q": 1}
    assert reply.choices[0].message.content is None
    assert stage.traces[0].tool_calls == (ToolCall(name="search", valid=True),)


def test_choices_about_tools_are_kept(stage: Stage) -> None:
    stage.says(f"{CALL}{CALL}")
    ask: Any = ASK | {"tools": TOOLS}
    with stage.client() as client:
        one = client.chat.completions.create(**ask, parallel_tool_calls=False)
        none = client.chat.completions.create(**ask, tool_choice="none")
    assert len(one.choices[0].message.tool_calls or []) == 1
    assert none.choices[0].message.content == f"{CALL}{CALL}"
    assert stage.traces[1].tool_calls == ()
    assert "search" not in stage.codec.tokenizer.decode(list(stage.traces[1].prompt_token_ids))


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_have_a_trace_each(stage: Stage, stream: bool) -> None:
    stage.script = lambda request, index: Line(f"choice {request.seed}")
    ask: Any = ASK | {"n": 3, "seed": 5}
    with stage.client() as client:
        if stream:
            texts = ["", "", ""]
            for chunk in client.chat.completions.create(**ask, stream=True):
                texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        else:
            reply = client.chat.completions.create(**ask)
            texts = [choice.message.content or "" for choice in reply.choices]
    assert texts == ["choice 5", "choice 6", "choice 7"]
    base = min(trace.trace_id for trace in stage.traces)
    assert {trace.trace_id for trace in stage.traces} == {base, f"{base}.1", f"{base}.2"}
    assert sorted(trace.choice for trace in stage.traces) == [0, 1, 2]


def test_when_one_choice_dies_the_others_end_and_leave_their_traces(stage: Stage) -> None:
    def script(request: EngineRequest, index: int) -> Line:
        if index == 1:
            return Line("ab", RuntimeError("died"), token_s=0.05)
        return Line("x" * 3000, token_s=0.01)

    stage.script = script
    with stage.client() as client, pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**ASK, n=3)
    assert "died" not in str(caught.value)
    stage.wait_idle()
    assert sorted((trace.choice, trace.finish_reason) for trace in stage.traces) == [
        (0, "interrupted"), (1, "error"), (2, "interrupted"),
    ]  # fmt: skip


def test_an_error_in_mid_stream_is_an_event_that_the_client_raises(stage: Stage) -> None:
    stage.says("some text", error=RuntimeError("secret"))
    with stage.client() as client:
        chunks = client.chat.completions.create(**ASK, stream=True)
        with pytest.raises(openai.APIError, match="failed inside the server") as caught:
            list(chunks)
    assert caught.value.code == "internal_error"
    assert [trace.finish_reason for trace in stage.traces] == ["error"]


def test_a_reply_that_could_not_be_recorded_has_no_finish_reason(stage: Stage) -> None:
    stage.failures[0] = LogUnavailable("away")
    with stage.client() as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(**ASK)
        assert caught.value.status_code == 503
        chunks = client.chat.completions.create(**ASK, stream=True)
        seen: list[str | None] = []
        with pytest.raises(openai.APIError, match="away"):
            seen.extend(chunk.choices[0].finish_reason for chunk in chunks)
    assert set(seen) == {None}


def test_a_trace_is_kept_before_its_finish_can_be_read(stage: Stage) -> None:
    def script(request: EngineRequest, index: int) -> Line:
        return Line("a" * 5, token_s=0.05 if index == 1 else 0.001)

    stage.script = script
    ended: dict[int, int] = {}
    with stage.client() as client:
        for chunk in client.chat.completions.create(**ASK, n=2, stream=True):
            [choice] = chunk.choices
            if choice.finish_reason:
                ended[choice.index] = len(stage.traces)
                assert choice.index in [trace.choice for trace in stage.traces]
    assert sorted(ended.values()) == [1, 2]


def test_a_busy_engine_is_a_rate_limit_even_for_a_stream(stage: Stage) -> None:
    stage.says("", error=EngineBusy("full"))
    with stage.client() as client:
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError, match="full") as caught:
                client.chat.completions.create(**ASK, stream=stream)
            assert caught.value.response.headers["retry-after"] == "1"
    assert stage.traces == []
