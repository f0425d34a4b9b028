"""Load: streamed completions over HTTP, timed where the client stands."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

from benchmarks.services import HEADERS

TIMEOUT_S = 300.0
DONE = b"data: [DONE]"


class Reply(NamedTuple):
    """One stream, to its end."""

    num_tokens: int
    """By the server's own count."""
    first_token_s: float
    finish_reason: str | None
    trace_id: str | None


class Failed(RuntimeError):
    """A request that was refused, or whose stream did not end as it should."""


def completion(prompt: str, num_tokens: int, **more: Any) -> dict[str, Any]:
    """A streamed completion of exactly so many tokens."""
    return {
        "model": "tendril", "prompt": prompt, "max_tokens": num_tokens, "temperature": 1.0,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    } | more  # fmt: skip


@asynccontextmanager
async def clients(num: int) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections for `num` streams at once."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=num)
    async with aiohttp.ClientSession(
        headers=HEADERS, timeout=timeout, connector=connector
    ) as session:
        yield session


async def stream(
    session: aiohttp.ClientSession,
    url: str,
    body: Mapping[str, Any],
    on_event: Callable[[], None] = lambda: None,
) -> Reply:
    """Ask, and read to the end. Raises `Failed`, or aiohttp's own where the connection breaks."""
    started = time.perf_counter()
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise Failed(f"{response.status}: {await response.text()}")
        first_token_s, lines = None, []
        async for line in response.content:
            if line.startswith(b"data: "):
                if first_token_s is None:
                    first_token_s = time.perf_counter() - started
                lines.append(line)
                on_event()
        if first_token_s is None:
            raise Failed("a stream without a token")
        num_tokens, finish_reason = end_of(lines)
        trace_id = response.headers.get("x-tendril-trace-id")
        return Reply(num_tokens, first_token_s, finish_reason, trace_id)


def end_of(lines: list[bytes]) -> tuple[int, str | None]:
    """Tokens and finish reason from the last events of a stream. Raises `Failed` without them."""
    if len(lines) < 3 or not lines[-1].startswith(DONE):
        raise Failed(f"a stream that ends with {lines[-1:]!r}")
    last, usage = (json.loads(line.removeprefix(b"data: ")) for line in lines[-3:-1])
    if not usage.get("usage"):
        raise Failed(f"expected usage before the end, got {usage}")
    [choice] = last["choices"]
    return usage["usage"]["completion_tokens"], choice["finish_reason"]


async def closed_loop(
    session: aiohttp.ClientSession,
    url: str,
    bodies: Iterable[Mapping[str, Any]],
    num_streams: int,
) -> list[Reply]:
    """So many streams at once; each asks again as soon as it has its reply."""
    waiting, replies = iter(bodies), list[Reply]()

    async def one_stream() -> None:
        for body in waiting:
            replies.append(await stream(session, url, body))

    await asyncio.gather(*(one_stream() for _ in range(num_streams)))
    return replies
