"""The official client when things go wrong or take long: its own exceptions, nothing left over."""

import asyncio
import time
from typing import Any

import openai
import pytest

from serving.engine import EngineBusy
from tendril.log import LogUnavailable
from tests.serving.scripted import Line, Stage

ASK: dict[str, Any] = {"model": "tendril", "messages": [{"role": "user", "content": "hello"}]}
LONG = "x" * 3000


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError),
        ({"messages": []}, openai.BadRequestError),
        ({"temperature": 9}, openai.BadRequestError),
        ({"max_tokens": 10_000}, openai.BadRequestError),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": LONG * 30}]}, openai.APIStatusError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_are_the_clients_own_exceptions(
    stage: Stage, change: dict[str, Any], error: type[openai.APIStatusError], stream: bool
) -> None:
    with stage.client() as client, pytest.raises(error) as caught:
        client.chat.completions.create(**(ASK | change), stream=stream)
    statuses = {openai.NotFoundError: 404, openai.BadRequestError: 400, openai.APIStatusError: 413}
    assert caught.value.status_code == statuses[error]
    assert caught.value.code
    assert stage.engine.requests == []


def test_a_wrong_key_is_an_authentication_error(stage: Stage) -> None:
    with (
        stage.client().with_options(api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError, match="unknown key"),
    ):
        client.chat.completions.create(**ASK)


def test_the_client_tries_again_when_it_is_asked_to(stage: Stage) -> None:
    lines = iter(["busy", "away", "fine"])

    def script(*_: Any) -> Line:
        line = next(lines)
        errors = {"busy": EngineBusy("full"), "away": LogUnavailable("away")}
        return Line("" if line in errors else line, errors.get(line))

    stage.script = script
    with stage.client().with_options(max_retries=2) as client:
        client._calculate_retry_timeout = lambda *_: 0.01  # type: ignore[method-assign]
        reply = client.chat.completions.create(**ASK)
    assert reply.choices[0].message.content == "fine"


def test_a_client_that_runs_out_of_patience_ends_the_sampling(stage: Stage) -> None:
    stage.says(LONG, token_s=0.01)
    with stage.client().with_options(timeout=0.2) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**ASK, n=2)
    stage.wait_idle()
    assert [trace.finish_reason for trace in stage.traces] == ["cancelled_by_client"] * 2
    assert all(0 < len(trace.completion_token_ids) < 300 for trace in stage.traces)


def test_a_stream_that_is_left_ends_the_sampling(stage: Stage) -> None:
    stage.says(LONG, token_s=0.005)
    with (
        stage.client() as client,
        client.chat.completions.create(**ASK, n=2, stream=True) as chunks,
    ):
        heard = {0: "", 1: ""}
        while not all(heard.values()):
            [choice] = next(chunks).choices
            heard[choice.index] += choice.delta.content or ""
    stage.wait_idle()
    assert [trace.finish_reason for trace in stage.traces] == ["cancelled_by_client"] * 2


def test_async_clients_chat_at_once_stream_and_cancel(stage: Stage) -> None:
    stage.says("good day", token_s=0.01)

    async def at_once() -> list[str | None]:
        async with stage.async_client() as client:
            replies = await asyncio.gather(
                *(client.chat.completions.create(**ASK) for _ in range(16))
            )
            stream = await client.chat.completions.create(**ASK, stream=True)
            streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return [reply.choices[0].message.content for reply in replies] + ["".join(streamed)]

    assert asyncio.run(at_once()) == ["good day"] * 17
    assert len(stage.traces) == 17

    async def cancelled() -> None:
        async with stage.async_client() as client:
            task = asyncio.create_task(client.chat.completions.create(**ASK, n=2))
            while stage.engine.num_running < 2:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    stage.reset()
    stage.says(LONG, token_s=0.01)
    started = time.monotonic()
    asyncio.run(cancelled())
    stage.wait_idle()
    assert time.monotonic() - started < 10  # 3000 tokens would take 30 s
    assert [trace.finish_reason for trace in stage.traces] == ["cancelled_by_client"] * 2


def test_completions_have_several_prompts_choices_and_an_echo(stage: Stage) -> None:
    stage.says("!?")
    with stage.client() as client:
        reply = client.completions.create(
            model="tendril", prompt=["one", "two"], n=2, echo=True, stop=["?"],
            extra_body={"top_k": 5},
        )  # fmt: skip
        chunks = list(
            client.completions.create(
                model="tendril", prompt=[[65], [66, 67]], echo=True, stream=True,
                stream_options={"include_usage": True},
            )
        )  # fmt: skip
    assert [c.text for c in reply.choices] == ["one!", "one!", "two!", "two!"]
    assert [c.index for c in reply.choices] == [0, 1, 2, 3]
    one, two = (len(stage.codec.encode(prompt)) for prompt in ("one", "two"))
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (one + two, 8)
    texts = ["", ""]
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    decode = stage.codec.tokenizer.decode
    assert texts == [decode([65]) + "!?", decode([66, 67]) + "!?"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 3
    assert {trace.trace_id.partition(".")[2] for trace in stage.traces} == {"", "1", "2", "3"}
    assert stage.traces[0].untrainable == "top_k"


def test_completions_report_the_most_probable_tokens(stage: Stage) -> None:
    stage.says("ab")
    with stage.client() as client:
        [choice] = client.completions.create(model="tendril", prompt="x", logprobs=2).choices
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b"]
    assert choice.logprobs.text_offset == [0, 1]
    assert choice.logprobs.top_logprobs == [{"a": -0.5, "b": -1.5}, {"b": -0.5, "c": -1.5}]
