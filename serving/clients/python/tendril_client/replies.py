"""Which trace a reply of the OpenAI client belongs to.

Reply headers are read by a hook of the HTTP client, so every call keeps its form and its types.
The OpenAI client keeps a reply's `x-request-id` on the object it returns; where the server sends
none the hook sets it to the trace's id, and so finds the headers again.
"""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any, NamedTuple, Protocol

import httpx2
import openai

TRACE, VERSION = "x-tendril-trace-id", "x-tendril-policy-version"
FEEDBACK_URL, REQUEST_ID = "x-tendril-feedback-url", "x-request-id"


class NoTrace(LookupError):
    """The reply names no trace: another server's, or too old to be remembered."""


class ReplyHeaders(NamedTuple):
    """What the server says about a reply."""

    trace_id: str
    policy_version: int
    feedback_url: str


class HasHeaders(Protocol):
    """A raw response, as of `with_raw_response` and `with_streaming_response`."""

    @property
    def headers(self) -> Mapping[str, str]: ...


Reply = openai.BaseModel | openai.Stream[Any] | openai.AsyncStream[Any] | HasHeaders
"""A completion, a stream, or a raw response."""


def read_headers(headers: Mapping[str, str]) -> ReplyHeaders | None:
    """None if they are not Tendril's."""
    if TRACE not in headers:
        return None
    return ReplyHeaders(headers[TRACE], int(headers[VERSION]), headers[FEEDBACK_URL])


class RecentReplies:
    """Headers of the last replies, by request id."""

    def __init__(self, max_replies: int = 1024) -> None:
        self._max_replies = max_replies
        self._by_request: OrderedDict[str, ReplyHeaders] = OrderedDict()
        self._lock = Lock()

    def note(self, response: httpx2.Response) -> None:
        """The HTTP client's hook."""
        found = read_headers(response.headers)
        if found is None:
            return
        request_id = response.headers.setdefault(REQUEST_ID, found.trace_id)
        with self._lock:
            self._by_request[request_id] = found
            if len(self._by_request) > self._max_replies:
                self._by_request.popitem(last=False)

    async def note_async(self, response: httpx2.Response) -> None:
        self.note(response)

    def headers_of(self, reply: Reply) -> ReplyHeaders:
        """Raises `NoTrace`."""
        match reply:
            case openai.BaseModel():
                request_id = getattr(reply, "_request_id", None)  # missing on parts of a reply
                with self._lock:
                    found = self._by_request.get(request_id) if request_id else None
            case openai.Stream() | openai.AsyncStream():
                found = read_headers(reply.response.headers)
            case _:
                found = read_headers(reply.headers)
        if found is None:
            raise NoTrace(
                f"expected a reply with {TRACE}, got a {type(reply).__name__} without it, made by "
                "another client, or older than the last 1024"
            )
        return found
