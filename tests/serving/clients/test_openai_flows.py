"""The official OpenAI client, alone and inside `Tendril`: its flows run unchanged."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from openai import AsyncOpenAI, OpenAI

from tendril_client import AsyncTendril, Tendril
from tests.serving.clients import flows
from tests.serving.clients.target import Target

Flow = Callable[[OpenAI, str], None]


@pytest.fixture(params=["plain", "wrapped"])
def client(request: pytest.FixtureRequest, target: Target) -> Iterator[OpenAI]:
    if request.param == "plain":
        with OpenAI(base_url=target.base_url, api_key=target.api_key) as plain:
            yield plain
    else:
        with Tendril(target.base_url, target.api_key) as tendril:
            yield tendril.openai


@pytest.mark.parametrize("flow", flows.COMPLETION_FLOWS, ids=lambda flow: flow.__name__)
def test_a_completion_flow(client: OpenAI, target: Target, flow: Flow):
    flow(client, target.model)


@pytest.mark.parametrize("flow", flows.CHAT_FLOWS, ids=lambda flow: flow.__name__)
def test_a_chat_flow(client: OpenAI, chat_target: Target, flow: Flow):
    flow(client, chat_target.model)


def test_completions_async(target: Target):
    async def run() -> None:
        async with AsyncOpenAI(base_url=target.base_url, api_key=target.api_key) as plain:
            await flows.completion_async(plain, target.model)
        async with AsyncTendril(target.base_url, target.api_key) as tendril:
            await flows.completion_async(tendril.openai, target.model)

    asyncio.run(run())


def test_chat_async(chat_target: Target):
    async def run() -> None:
        async with AsyncTendril(chat_target.base_url, chat_target.api_key) as tendril:
            await flows.chat_async(tendril.openai, chat_target.model)

    asyncio.run(run())
