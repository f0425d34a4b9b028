"""What a request's messages say about the conversation that it continues.

Reads the bodies of OpenAI's chat, completions and responses and of Anthropic's messages. Only what
users and tools said is hashed: clients shorten or restyle the model's turns before they send them
back. System prompts are left out, as many carry the time of day or the open file.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

ANSWERING_ITEMS = frozenset({"reasoning", "item_reference", "compaction"})
"""Items of a Responses input that come from the model, beside those that end in `_call`."""
PREAMBLE = frozenset({"system", "developer"})


class Exchange(NamedTuple):
    """One earlier reply: all that had been said to the model before it, and its text."""

    asked: bytes
    answer: bytes | None
    """Digest of the text; None where the reply had none, such as a tool call."""


class History(NamedTuple):
    """Digests of one request's messages. `asked` None: a plain completion, or a response's id."""

    asked: bytes | None = None
    """Of all that was said to the model so far, this request's message included."""
    earlier: tuple[Exchange, ...] = ()
    """Replies that the request carries along, newest first."""
    opening: bytes | None = None
    """Of what was said before the first reply."""
    previous_response_id: str | None = None


def history_of(path: str, body: Any) -> History | None:
    """The history in a body of that path; None where there is none to read. Never raises."""
    if not isinstance(body, dict):
        return None
    if path.endswith("/responses"):
        return _of_response(body)
    if path.endswith(("/chat/completions", "/messages")):
        return _of_messages(body.get("messages"))
    return History() if path.endswith("/completions") else None


def text_digest(text: str | None) -> bytes | None:
    """Digest of a reply's text without the white space around it; None where nothing is left."""
    stripped = (text or "").strip()
    return _digest(stripped.encode(errors="surrogatepass")) if stripped else None


def _of_response(body: dict[str, Any]) -> History | None:
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    history = _of_messages(items)
    previous = body.get("previous_response_id")
    if isinstance(previous, str) and previous:  # then the input holds only what is new
        return History(previous_response_id=previous)
    return history


def _of_messages(messages: Any) -> History | None:
    if not isinstance(messages, list) or not messages:
        return None
    if not all(isinstance(message, dict) for message in messages):
        return None
    try:
        return _folded(messages)
    except (RecursionError, TypeError, ValueError):  # nesting, or numbers, that no JSON should have
        return None


def _folded(messages: list[dict[str, Any]]) -> History:
    said = hashlib.blake2b(digest_size=16)
    nothing = said.digest()
    replies: dict[bytes, str] = {}  # several items can make up one reply
    for message in messages:
        if _is_answer(message):
            asked = said.digest()
            if asked != nothing:  # a greeting opens no conversation
                replies[asked] = replies.get(asked, "") + _text(message.get("content"))
        elif message.get("role") not in PREAMBLE:
            said.update(_digest(_canonical(message)))
    exchanges = [Exchange(asked, text_digest(text)) for asked, text in replies.items()]
    opening = exchanges[0].asked if exchanges else said.digest()
    return History(said.digest(), tuple(reversed(exchanges)), opening)


def _is_answer(message: dict[str, Any]) -> bool:
    kind = message.get("type")
    by_model = isinstance(kind, str) and (kind.endswith("_call") or kind in ANSWERING_ITEMS)
    return by_model or message.get("role") == "assistant"


def _canonical(message: dict[str, Any]) -> bytes:
    """The same bytes however a client spells the message.

    Ids and cache marks that clients add, move or drop between requests are left out.
    """
    content = message.get("content", message.get("output"))
    if isinstance(content, list):
        parts = [_part(part) for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        content = "".join(texts) if len(texts) == len(parts) else parts
    call = message.get("tool_call_id") or message.get("call_id")
    said = [message.get("role"), call, content]
    return json.dumps(said, sort_keys=True, separators=(",", ":")).encode()


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    if isinstance(part.get("text"), str):
        return part["text"]
    return {key: value for key, value in part.items() if key != "cache_control"}


def _text(content: Any) -> str:
    """The words of a reply, as string or parts."""
    if isinstance(content, str):
        return content
    return "".join(_texts(content)) if isinstance(content, list) else ""


def _texts(parts: Iterable[Any]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
