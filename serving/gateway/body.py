"""A request's body: read within bounds, and the few fields of it that routing needs."""

import asyncio
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.types import Receive

from serving.access import identifier
from serving.api.errors import Refused, too_large

S = TypeVar("S", bound=msgspec.Struct)
BYTES_A_TOKEN = 4
"""Of prompt text, roughly: quotas count before anything is tokenised."""
DEFAULT_REPLY_TOKENS = 256
"""What a request without a limit of its own counts as."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class Asked(msgspec.Struct, frozen=True):
    """The body's fields that say whose request it is and how much it may cost.

    Any type is taken here: the replica says what is wrong with them.
    """

    user: Any = None
    safety_identifier: Any = None
    metadata: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    prompt: Any = None


class Reported(msgspec.Struct, frozen=True):
    """A feedback body's only field that routing needs, in an event or in a batch of them."""

    trace_id: Any = None
    events: Any = None


class Identity(NamedTuple):
    """Who asks, as far as the request says."""

    user: str = ""
    session: str = ""


async def read_body(
    receive: Receive, declared: bytes | None, max_bytes: int, timeout_s: float
) -> bytes:
    """The whole body. Raises `Refused` 413 or 408, or `ClientGone`."""
    if declared is not None and (not declared.isdigit() or int(declared[:20]) > max_bytes):
        raise too_large(max_bytes, declared[:20].decode("latin-1"))
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(receive, max_bytes)
    except TimeoutError as error:
        message = f"body: expected all of it within {timeout_s:g} s"
        raise Refused(408, "body_timeout", message) from error


async def _read(receive: Receive, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    num_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        more = message.get("more_body", False)
        if num_bytes > max_bytes:
            raise too_large(max_bytes)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_asked(body: bytes) -> Asked:
    """What the body says; nothing where it is no JSON object."""
    return _decoded(body, Asked)


def _decoded(body: bytes, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return kind()


def identity_of(asked: Asked, user_header: bytes, session_header: bytes) -> Identity:
    """Headers first, then the body's fields."""
    session = asked.metadata.get("session_id") if isinstance(asked.metadata, dict) else None
    return Identity(
        user=identifier(user_header.decode(errors="replace"), asked.user, asked.safety_identifier),
        session=identifier(session_header.decode(errors="replace"), session),
    )


def tokens_at_most(body: bytes, asked: Asked) -> int:
    """Roughly the most tokens a request can cost, prompt and replies."""
    limits = (asked.max_tokens, asked.max_completion_tokens, asked.max_output_tokens)
    stated = [number for limit in limits if (number := _number(limit, 2**31))]
    prompts = asked.prompt if isinstance(asked.prompt, list) else []
    num_prompts = sum(isinstance(prompt, str | list) for prompt in prompts)  # else token ids
    num_replies = (_number(asked.n, 2**16) or 1) * max(1, num_prompts)
    return len(body) // BYTES_A_TOKEN + num_replies * max(stated, default=DEFAULT_REPLY_TOKENS)


def _number(value: object, limit: int) -> int | None:
    """A whole number from 1 on, also where it is written as text or with a point: a replica may
    take it so."""
    try:
        number = int(float(value)) if isinstance(value, int | float | str) else 0
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < limit else None


def reported_request(body: bytes, query: bytes) -> str:
    """What feedback is about, the same for all choices of a request; else its token, else "".

    Repeats of an event then meet the replica that saw it first.
    """
    reported = _decoded(body, Reported)
    trace_id = reported.trace_id
    if isinstance(reported.events, list) and reported.events:
        first = reported.events[0]
        trace_id = first.get("trace_id") if isinstance(first, dict) else None
    return identifier(trace_id).partition(".")[0] or query.decode("latin-1")
