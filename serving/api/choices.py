"""The choices of one request, sampled at the same time."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from serving.recorder import Decision, Recorder


class Piece(NamedTuple):
    """What one choice shows next."""

    choice: int
    text: str
    ended: bool = False
    """Nothing more comes of it, and its trace is durable."""


class ChoiceFailed(Exception):
    """One choice failed with `cause`; the others were ended, and left their traces."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def sample_all(
    recorder: Recorder, decisions: Sequence[Decision]
) -> AsyncGenerator[Piece, None]:
    """Pieces of all choices as they come; closing the iterator ends them all.

    Raises `ChoiceFailed` as soon as one fails.
    """
    arrived: asyncio.Queue[Piece | asyncio.Task[None]] = asyncio.Queue()
    tasks = [
        asyncio.create_task(_sample(recorder, decision, index, arrived))
        for index, decision in enumerate(decisions)
    ]
    for task in tasks:
        task.add_done_callback(arrived.put_nowait)
    try:
        num_left = len(tasks)
        while num_left:
            item = await arrived.get()
            if isinstance(item, Piece):
                yield item
                continue
            if (cause := item.exception()) is not None:
                _interrupt(tasks, decisions)
                raise ChoiceFailed(cause)
            num_left -= 1
            yield Piece(tasks.index(item), "", ended=True)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _sample(
    recorder: Recorder,
    decision: Decision,
    index: int,
    arrived: asyncio.Queue[Piece | asyncio.Task[None]],
) -> None:
    async for text in recorder.sample(decision):
        arrived.put_nowait(Piece(index, text))


def _interrupt(tasks: Sequence[asyncio.Task[None]], decisions: Sequence[Decision]) -> None:
    """Their client did not hang up, which is what an early end means otherwise."""
    for task, decision in zip(tasks, decisions, strict=True):
        if not task.done():
            decision.finish_reason = "interrupted"
