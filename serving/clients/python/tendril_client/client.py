"""The official OpenAI client pointed at Tendril, and a `Suggestion` for each of its replies."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit, urlunsplit
from uuid import uuid4

import httpx2
from anyio import to_thread
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from tendril_client.outbox import Outbox
from tendril_client.replies import NoTrace, RecentReplies, Reply
from tendril_client.suggestion import Suggestion

Hooks = dict[str, list[Callable[..., Any]]]  # as httpx types them

__all__ = ["AsyncTendril", "NoTrace", "Tendril"]


class Tendril:
    """`openai` is the official client, used as ever; `suggestion(reply)` reports on a reply."""

    openai: OpenAI

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        user: str | None = None,
        session_id: str | None = None,
        train_consent: bool = True,
        content_consent: bool = False,
        outbox: Outbox | Path | None = None,
        openai: OpenAI | None = None,
        http_client: httpx2.Client | None = None,
    ) -> None:
        """`outbox`: a file, for events that outlive the process; None keeps them in memory.

        `openai`: a client whose timeouts, retries and headers to keep. It is copied, with the
        `http_client` given here: the hook that reads reply headers belongs to that.
        """
        self.session_id = session_id or str(uuid4())
        self.outbox = outbox if isinstance(outbox, Outbox) else Outbox(outbox)
        self._base_url, self._replies = base_url, RecentReplies()
        http = http_client or DefaultHttpxClient()
        http.event_hooks = _with_hook(http.event_hooks, self._replies.note)
        client = openai or OpenAI(api_key=api_key)
        self.openai = client.with_options(
            api_key=api_key,
            base_url=base_url,
            http_client=http,
            default_headers=_headers(self.session_id, user, train_consent, content_consent),
        )

    def suggestion(self, reply: Reply, choice: int = 0) -> Suggestion:
        """For a completion, a stream or a raw response of `openai`. Raises `NoTrace`."""
        return _suggestion(
            self._replies, reply, choice, self._base_url, self.session_id, self.outbox
        )

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is pending, as far as the time allows."""
        self.outbox.close(timeout_s)
        self.openai.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


class AsyncTendril:
    """The same around `AsyncOpenAI`. A suggestion's methods do not wait, so they stay plain."""

    openai: AsyncOpenAI

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        user: str | None = None,
        session_id: str | None = None,
        train_consent: bool = True,
        content_consent: bool = False,
        outbox: Outbox | Path | None = None,
        openai: AsyncOpenAI | None = None,
        http_client: httpx2.AsyncClient | None = None,
    ) -> None:
        """As `Tendril`."""
        self.session_id = session_id or str(uuid4())
        self.outbox = outbox if isinstance(outbox, Outbox) else Outbox(outbox)
        self._base_url, self._replies = base_url, RecentReplies()
        http = http_client or DefaultAsyncHttpxClient()
        http.event_hooks = _with_hook(http.event_hooks, self._replies.note_async)
        client = openai or AsyncOpenAI(api_key=api_key)
        self.openai = client.with_options(
            api_key=api_key,
            base_url=base_url,
            http_client=http,
            default_headers=_headers(self.session_id, user, train_consent, content_consent),
        )

    def suggestion(self, reply: Reply, choice: int = 0) -> Suggestion:
        """As `Tendril.suggestion`."""
        return _suggestion(
            self._replies, reply, choice, self._base_url, self.session_id, self.outbox
        )

    async def close(self, timeout_s: float = 5.0) -> None:
        """As `Tendril.close`."""
        await to_thread.run_sync(self.outbox.close, timeout_s)
        await self.openai.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self.close()


def feedback_target(base_url: str, feedback_url: str) -> tuple[str, str | None]:
    """Endpoint and token of a reply's feedback URL, which may be relative to the server's root.

    Events carry their tokens themselves, so that one request can hold those of several traces.
    """
    if feedback_url.startswith("/"):
        feedback_url = base_url.rstrip("/").removesuffix("/v1") + feedback_url
    parts = urlsplit(feedback_url)
    [token] = parse_qs(parts.query).get("token", [None])
    return urlunsplit(parts._replace(query="")), token


def _suggestion(
    replies: RecentReplies,
    reply: Reply,
    choice: int,
    base_url: str,
    session_id: str,
    outbox: Outbox,
) -> Suggestion:
    headers = replies.headers_of(reply)
    endpoint, token = feedback_target(base_url, headers.feedback_url)
    return Suggestion(
        trace_id=headers.trace_id if choice == 0 else f"{headers.trace_id}.{choice}",
        policy_version=headers.policy_version,
        session_id=session_id,
        endpoint=endpoint,
        feedback_token=token,
        outbox=outbox,
    )


def _headers(
    session_id: str, user: str | None, train_consent: bool, content_consent: bool
) -> dict[str, str]:
    headers = {
        "x-tendril-session-id": session_id,
        "x-tendril-train-consent": str(train_consent).lower(),
        "x-tendril-content-consent": str(content_consent).lower(),
    }
    return headers if user is None else {**headers, "x-tendril-user": user}


def _with_hook(hooks: Hooks, hook: Callable[..., Any]) -> Hooks:
    return {**hooks, "response": [*hooks.get("response", []), hook]}
