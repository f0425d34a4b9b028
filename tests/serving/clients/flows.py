"""What people do with the official OpenAI client, against any server.

Each flow takes an OpenAI client and a model's name, and asserts what the client promises.
"""

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "def a"},
]
TOOLS: list[openai.types.chat.ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
        },
    }
]


def completion(client: OpenAI, model: str) -> None:
    reply = client.completions.create(model=model, prompt="def a", max_tokens=8, temperature=0)
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def completion_stream(client: OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt="def a", max_tokens=8, temperature=0)
    with client.completions.create(
        model=model, prompt="def a", max_tokens=8, temperature=0, stream=True
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def completion_logprobs(client: OpenAI, model: str) -> None:
    reply = client.completions.create(model=model, prompt="def a", max_tokens=4, logprobs=1)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) > 0
    assert all(logprob is not None and logprob <= 0 for logprob in logprobs.token_logprobs)


def completion_errors(client: OpenAI, model: str) -> None:
    once = client.with_options(max_retries=0)
    with pytest.raises(openai.NotFoundError) as missing:
        once.completions.create(model="no-such-model", prompt="a")
    assert missing.value.type is not None
    with pytest.raises(openai.BadRequestError) as invalid:
        once.completions.create(model=model, prompt="a", max_tokens=-1)
    assert "max_tokens" in str(invalid.value)
    with pytest.raises(openai.AuthenticationError):
        once.with_options(api_key="nobodys").completions.create(model=model, prompt="a")


def timeout(client: OpenAI, model: str) -> None:
    hasty = client.with_options(timeout=1e-4, max_retries=0)
    with pytest.raises(openai.APITimeoutError):
        hasty.completions.create(model=model, prompt="def a", max_tokens=100)


def abort(client: OpenAI, model: str) -> None:
    """Leave a stream after its first piece; the server goes on serving."""
    with client.completions.create(
        model=model, prompt="def a", max_tokens=100, stream=True
    ) as stream:
        next(iter(stream))
    completion(client, model)


def models(client: OpenAI, model: str) -> None:
    assert model in [found.id for found in client.models.list()]


def chat(client: OpenAI, model: str) -> None:
    reply = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8)
    [choice] = reply.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def chat_stream(client: OpenAI, model: str) -> None:
    whole = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=8, temperature=0
    )
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=8, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == (whole.choices[0].message.content or "")
    assert chunks[-1].usage == whole.usage


def chat_stream_helper(client: OpenAI, model: str) -> None:
    with client.chat.completions.stream(model=model, messages=MESSAGES, max_tokens=8) as stream:
        types = {event.type for event in stream}
        final = stream.current_completion_snapshot
    assert "chunk" in types
    assert final.choices[0].message.role == "assistant"


def chat_logprobs(client: OpenAI, model: str) -> None:
    reply = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=4, logprobs=True
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    assert all(token.logprob <= 0 for token in logprobs.content)


def chat_choices(client: OpenAI, model: str) -> None:
    reply = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=4, n=3)
    assert sorted(choice.index for choice in reply.choices) == [0, 1, 2]


def chat_tools(client: OpenAI, model: str) -> None:
    """A model may or may not call; if it does, the call is well formed."""
    reply = client.chat.completions.create(
        model=model, messages=MESSAGES, tools=TOOLS, tool_choice="auto", max_tokens=16
    )
    for call in reply.choices[0].message.tool_calls or []:
        assert call.type == "function"
        assert call.id
        assert call.function.name


def chat_errors(client: OpenAI, model: str) -> None:
    once = client.with_options(max_retries=0)
    with pytest.raises(openai.NotFoundError):
        once.chat.completions.create(model="no-such-model", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError):
        once.chat.completions.create(model=model, messages=[])
    with pytest.raises(openai.AuthenticationError):
        once.with_options(api_key="nobodys").chat.completions.create(model=model, messages=MESSAGES)


async def completion_async(client: AsyncOpenAI, model: str) -> None:
    whole = await client.completions.create(
        model=model, prompt="def a", max_tokens=8, temperature=0
    )
    stream = await client.completions.create(
        model=model, prompt="def a", max_tokens=8, temperature=0, stream=True
    )
    pieces = [chunk.choices[0].text async for chunk in stream]
    assert "".join(pieces) == whole.choices[0].text


async def chat_async(client: AsyncOpenAI, model: str) -> None:
    whole = await client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=8, temperature=0
    )
    stream = await client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=8, temperature=0, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(pieces) == (whole.choices[0].message.content or "")


COMPLETION_FLOWS = (
    completion, completion_stream, completion_logprobs, completion_errors, timeout, abort, models,
)  # fmt: skip
CHAT_FLOWS = (
    chat, chat_stream, chat_stream_helper, chat_logprobs, chat_choices, chat_tools, chat_errors,
)  # fmt: skip
