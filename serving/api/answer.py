"""From decisions to a reply, whole or as server-sent events: the same for both routes."""

import json
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from serving.api.choices import ChoiceFailed, Piece, sample_all
from serving.api.connection import ClientGone, EventStream, while_connected
from serving.api.errors import refusal
from serving.engine import EngineBusy
from serving.node import ServingNode
from serving.recorder import Decision

log = logging.getLogger(__name__)


class Reply(Protocol):
    """How a route words its replies, in the shapes of OpenAI's reference."""

    def whole(self) -> dict[str, Any]:
        """The body, once every choice has ended."""
        ...

    def chunks(self, piece: Piece) -> Iterable[dict[str, Any]]:
        """What a stream says of one piece; of the last one, why the choice ended."""
        ...

    def last_chunks(self) -> Iterable[dict[str, Any]]:
        """After all choices: usage, where it was asked for."""
        ...


async def answer(
    request: Request,
    node: ServingNode,
    decisions: Sequence[Decision],
    reply: Reply,
    *,
    stream: bool,
) -> Response:
    """The reply; each trace is durable before a client can read that its choice has ended.

    Raises `Refused`, or what failed below the API.
    """
    pieces = sample_all(node.recorder, decisions)
    try:
        # A refusal by the engine has a status, so even a stream waits for its first token.
        first = await while_connected(request, anext(pieces))
        if stream:
            return EventStream(events(first, pieces, reply), pieces)
        await while_connected(request, _exhaust(pieces))
    except ClientGone:
        return Response(status_code=499)  # nobody reads it
    except ChoiceFailed as failed:
        if isinstance(failed.cause, EngineBusy):
            node.count_refused("engine busy")
            raise refusal(failed.cause) from failed
        raise failed.cause from failed
    return JSONResponse(reply.whole())


async def _exhaust(pieces: AsyncIterator[Piece]) -> None:
    async for _ in pieces:
        pass


async def events(first: Piece, pieces: AsyncIterator[Piece], reply: Reply) -> AsyncIterator[str]:
    """Server-sent events; should a choice fail, the last one says so, without a finish reason."""
    for chunk in reply.chunks(first):
        yield _event(chunk)
    try:
        async for piece in pieces:
            for chunk in reply.chunks(piece):
                yield _event(chunk)
    except ChoiceFailed as failed:
        refused = refusal(failed.cause)
        if refused.status == 500:
            log.error("a reply failed in mid-stream", exc_info=failed.cause)
        yield _event(refused.body())
        return
    for chunk in reply.last_chunks():
        yield _event(chunk)
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
