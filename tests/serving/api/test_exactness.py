"""What is on the log is what the engine sampled, token for token, for every kind of request.

Two hundred mixed requests at once: whole and streamed, chats with tools, four choices, stop
strings, characters split over tokens, one token only, and clients that leave.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
import torch

from kernels.scoring import Scorable, completion_logprobs, load_policy
from serving.engine import EngineRequest, SampledToken
from serving.sessions import given_session_id
from serving.text import TextCodec
from serving.torch_engine.engine import TorchEngine
from tendril.records import Trace
from tests.serving.scripted import CONTEXT, running_app
from tests.serving.small_model import SILENCE, make_engine

NUM_REQUESTS = 200
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class Watched:
    """An engine, and all that it ever sampled."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self.seen: list[tuple[EngineRequest, list[SampledToken]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SampledToken, None]:
        tokens: list[SampledToken] = []
        self.seen.append((request, tokens))
        sampled = self._engine.generate(request)
        try:
            async for token in sampled:
                tokens.append(token)
                yield token
        finally:
            await sampled.aclose()


class Sent(NamedTuple):
    """One request, how many choices it has, and whether its client left."""

    number: int
    num_choices: int
    left: bool


def body_of(number: int, chance: random.Random) -> dict[str, Any]:
    """A request of some kind; odd ones are chats."""
    text = chance.choice(["def a", "naïve €uro", "日本語", "x"])
    body: dict[str, Any] = {
        "model": "tendril",
        "max_tokens": chance.choice([1, 8, 40]),
        "temperature": chance.choice([1.0, 0.7, 1.5]),
        "n": chance.choice([1, 1, 4]),
        "stream": chance.random() < 0.5,
        "stop": chance.choice([None, "e", ["re", "a"]]),
        "seed": chance.choice([None, number]),
    }
    if number % 2 == 0:
        return body | {"prompt": text}
    tools: dict[str, Any] = chance.choice(
        [{}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "required"}]
    )
    return body | tools | {"messages": [{"role": "user", "content": text}]}


async def send(client: openai.AsyncOpenAI, number: int, chance: random.Random) -> Sent:
    body = body_of(number, chance)
    left = chance.random() < 0.2
    create: Any = client.chat.completions.create if number % 2 else client.completions.create
    headers = {"x-tendril-session-id": f"s{number}"}
    if left and not body["stream"]:
        task = asyncio.create_task(create(**body, extra_headers=headers))
        await asyncio.sleep(chance.random() / 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    else:
        reply = await create(**body, extra_headers=headers)
        if body["stream"]:
            await read(reply, chance.randrange(1, 6) if left else None)
    return Sent(number, body["n"], left)


async def read(stream: Any, num_chunks: int | None) -> None:
    """All of it, or a few chunks and then away."""
    async for _ in stream:
        if num_chunks is not None:
            num_chunks -= 1
            if num_chunks == 0:
                break
    await stream.close()


async def send_all(url: str, key: str) -> list[Sent]:
    chance = random.Random(0)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        return list(await asyncio.gather(*(send(client, i, chance) for i in range(NUM_REQUESTS))))


@pytest.mark.slow
def test_every_choice_has_one_trace_that_equals_what_was_sampled(
    checkpoint: Path, tmp_path: Path
) -> None:
    engine = Watched(make_engine(checkpoint, max_context_tokens=CONTEXT, max_waiting=1000))
    with running_app(tmp_path, checkpoint, engine, TextCodec(checkpoint)) as app:
        sent = asyncio.run(send_all(app.url, app.key))
        app.wait_idle()
        traces = app.traces()
    assert_one_trace_a_choice(sent, traces)
    traces = [trace for trace in traces if trace.completion_token_ids]  # the rest left too early
    assert Counter(map(_recorded, traces)) == Counter(
        _sampled(request, tokens) for request, tokens in engine.seen if tokens
    )
    model = load_policy(checkpoint)
    items = [
        Scorable(t.prompt_token_ids, t.completion_token_ids, t.sampling.temperature) for t in traces
    ]
    with torch.no_grad():
        scored = completion_logprobs(model, items, SILENCE).tolist()
    recorded = [logprob for trace in traces for logprob in trace.behavior_logprobs]
    assert recorded == pytest.approx(scored, abs=1e-4)


def assert_one_trace_a_choice(sent: list[Sent], traces: list[Trace]) -> None:
    tenant = traces[0].tenant
    by_session: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        by_session[trace.session_id].append(trace)
    assert len({trace.trace_id for trace in traces}) == len(traces)
    reasons = Counter(trace.finish_reason for trace in traces)
    assert {"stop", "length", "cancelled_by_client"} <= reasons.keys()
    for number, num_choices, left in sent:
        choices = sorted(t.choice for t in by_session[given_session_id(tenant, f"s{number}")])
        if left:  # maybe before a token was sampled
            assert set(choices) <= set(range(num_choices))
            assert len(set(choices)) == len(choices)
        else:
            assert choices == list(range(num_choices))


def _recorded(trace: Trace) -> tuple[Any, ...]:
    return trace.prompt_token_ids, trace.completion_token_ids, trace.behavior_logprobs


def _sampled(request: EngineRequest, tokens: list[SampledToken]) -> tuple[Any, ...]:
    ids = tuple(token.token_id for token in tokens)
    return request.prompt_token_ids, ids, tuple(token.logprob for token in tokens)
