"""One request inside the torch engine, and the way of its tokens back to the event loop."""

import asyncio
import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from serving.engine import EngineRequest, SampledToken
from serving.torch_engine.sampler import Row


@dataclass(slots=True, eq=False)
class Running:
    """A request that waits for a slot or holds one."""

    request: EngineRequest
    loop: asyncio.AbstractEventLoop
    tokens: asyncio.Queue[SampledToken | Exception]
    generator: torch.Generator | None
    arrived_at: float = field(default_factory=time.monotonic)
    queue_s: float = 0.0
    slot: int = -1
    num_sampled: int = 0
    last_token: int = 0
    aborted: bool = False
    outbox: list[SampledToken | Exception] = field(default_factory=list)

    @property
    def row(self) -> Row:
        first = self.num_sampled == 0
        return Row(
            self.request.temperature, self.request.top_p, self.generator,
            first, first and self.request.forbid_silence,
        )  # fmt: skip

    @property
    def next_position(self) -> int:
        """Where the token sampled last belongs."""
        return len(self.request.prompt_token_ids) + self.num_sampled - 1


def deliver(requests: Iterable[Running]) -> None:
    """Hand outboxes to their event loops: one wake-up a loop, whatever the number of tokens."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Running, SampledToken | Exception]]] = {}
    for running in requests:
        by_loop.setdefault(running.loop, []).extend((running, item) for item in running.outbox)
        running.outbox = []
    for loop, items in by_loop.items():
        with contextlib.suppress(RuntimeError):  # a closed loop has nobody left who waits
            loop.call_soon_threadsafe(_put_all, items)


def _put_all(items: list[tuple[Running, SampledToken | Exception]]) -> None:
    for running, item in items:
        running.tokens.put_nowait(item)
