"""The body of a report: JSON, whatever its content type says.

`navigator.sendBeacon` sends a string as text/plain, which needs no preflight, and curl calls
everything a form; neither says anything about the bytes.
"""

import json
from collections import Counter
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect

from serving.api.errors import Refused, encodable, invalid
from serving.feedback.envelope import Event
from serving.feedback.wire import EVENT_BY_TYPE

M = TypeVar("M", bound=BaseModel)


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises `Refused` 400."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise Refused(
            400, "unsupported_encoding",
            f"Content-Encoding: expected none, got {encoding!r:.40}; send the JSON as it is",
        )  # fmt: skip
    try:
        return parsed(await request.body())
    except ClientDisconnect:
        raise Refused(400, "client_gone", "body: expected JSON, got half of it") from None


def parsed(body: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8 without repeated keys. Raises `Refused` 400.

    NaN and infinity pass: the field that holds one is refused, and the rest of a batch is not.
    """
    try:
        value = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_object)
    except RecursionError:
        raise Refused(400, "json_invalid", "body: expected JSON, got too deep a nesting") from None
    except ValueError as error:
        message = f"body: expected JSON, got: {encodable(str(error)):.200}"
        raise Refused(400, "json_invalid", message) from error
    if not isinstance(value, dict):
        raise Refused(400, "json_invalid", f"body: expected an object, got {shown(value)}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Parsers disagree on which of two equal keys counts, so neither does."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r:.40} twice in one object")
    return found


def event_of(raw: dict[str, Any]) -> Event:
    """The typed event. Raises `Refused` 400 that names the field, what it takes and what came."""
    name = raw.get("type")
    event_type = EVENT_BY_TYPE.get(name) if isinstance(name, str) else None
    if event_type is None:
        got = shown(name) if "type" in raw else "none"
        types = ", ".join(EVENT_BY_TYPE)
        message = f"type: expected an event type among {types} (/v1/feedback/schema), got {got}"
        raise Refused(400, "unknown_event_type", message, param="type")
    return validated(event_type, raw, of=f"'{name}'")


def validated(model: type[M], raw: dict[str, Any], *, of: str) -> M:
    """`raw` as `model`, or the `Refused` 400 that says why not; `of` names what it should be."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise invalid([_readable(found, of) for found in error.errors()]) from None


def _readable(error: ErrorDetails, of: str) -> ErrorDetails:
    """The error with its input made short and, for a field too many, in plain words."""
    unknown = error["type"] == "extra_forbidden"
    message = f"expected no such field in {of}" if unknown else error["msg"]
    return {**error, "msg": message, "input": _Shown(shown(error["input"]))}


def shown(value: object) -> str:
    """A value in an error message: whole if it is flat, else its kind, as it may be a deep one."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return f"a list of {len(value)}"
    try:
        return f"{value!r:.80}"
    except ValueError:  # an integer too long to be printed
        return "a number with thousands of digits"


class _Shown(str):
    """Text that is its own repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
