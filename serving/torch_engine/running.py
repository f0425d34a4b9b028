"""One request inside the torch engine, and the way of its tokens back to the event loop."""

import asyncio
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
    token_ids: list[int]
    """Prompt and tokens sampled so far."""
    num_cached: int = 0
    """How many of `token_ids` its slot holds keys and values of; the rest is for the next step."""
    is_reusable: bool = True
    """All of the slot was computed by the live version."""
    arrived_at: float = field(default_factory=time.monotonic)
    queue_s: float | None = None
    """None until it is taken up for the first time."""
    aborted: bool = False
    outbox: list[SampledToken | Exception] = field(default_factory=list)

    @property
    def num_sampled(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def num_pending(self) -> int:
        """Tokens that the next step has to compute, at least one: it yields the logits."""
        return len(self.token_ids) - self.num_cached

    @property
    def row(self) -> Row:
        request, is_first = self.request, self.num_sampled == 0
        return Row(
            request.temperature, request.top_p, request.top_k, request.min_p, self.generator,
            is_first, is_first and request.forbid_silence, request.num_top_logprobs,
        )  # fmt: skip


def deliver(requests: Iterable[Running]) -> None:
    """Hand outboxes to their event loops: one wake-up a loop, whatever the number of tokens."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Running, SampledToken | Exception]]] = {}
    for running in requests:
        by_loop.setdefault(running.loop, []).extend((running, item) for item in running.outbox)
        running.outbox = []
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, items)
        except RuntimeError:  # a closed loop has nobody left who waits
            for running, _ in items:
                running.aborted = True


def _put_all(items: list[tuple[Running, SampledToken | Exception]]) -> None:
    for running, item in items:
        running.tokens.put_nowait(item)
