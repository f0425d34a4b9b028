"""The door of a serving node: who asks, in which session, and what the reply's headers name.

ASGI middleware, the same in front of the torch engine's routes and of vLLM's own server. It makes
the `ServedRequest` that the recorder completes below the API, and holds back the start of a reply
until its first byte: only then is the policy version known that sampled the first token.
"""

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.access import FEEDBACK_PATHS
from serving.api.errors import Refused, not_found
from serving.context import ServedRequest, operation, served_request
from serving.feedback.tokens import TraceScope
from serving.identity import APPLICATION_PATHS, identify
from serving.node import ServingNode

OPEN_PATHS = FEEDBACK_PATHS | {"/health", "/ready"}
"""No key needed."""
LISTING_PATHS = frozenset({"/v1/models"})

ABANDONED_S = 2.0
"""After its client went, how long a request may still leave a trace by itself."""


class Door:
    """Lets known callers in to public paths, as `served_request`."""

    def __init__(self, app: ASGIApp, node: ServingNode) -> None:
        self._app, self._node = app, node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "websocket":  # an engine's own server may have some
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http" or path in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            key = self._node.authenticate(headers)
            if path in APPLICATION_PATHS and scope["method"] == "POST":
                messages = await _read(receive)
                body = b"".join(message.get("body", b"") for message in messages)
                request = identify(self._node, key, headers, path, body)
                self._node.admit(request.lane)
            elif path in APPLICATION_PATHS | LISTING_PATHS:
                await self._app(scope, receive, send)
                return
            else:  # an engine's own server has routes that are nobody else's business
                raise not_found(f"{scope['method']} {path[:80]}", path)
        except Refused as refused:
            await refused.response()(scope, receive, send)
            return
        await self._serve(request, headers, scope, messages, receive, send)

    async def _serve(
        self,
        request: ServedRequest,
        headers: Headers,
        scope: Scope,
        messages: list[Message],
        receive: Receive,
        send: Send,
    ) -> None:
        is_gone = False

        async def replayed() -> Message:
            nonlocal is_gone
            message = messages.pop(0) if messages else await receive()
            is_gone = is_gone or message["type"] == "http.disconnect"
            return message

        served_request.set(request)
        model = self._node.settings.model_name
        with self._node.telemetry.server_span(operation(request.route), model, headers) as span:
            try:
                await self._app(scope, replayed, NamedReply(send, request, self._node))
            finally:
                span.set_attributes(request.span_attributes(model))
                if is_gone and not request.finish_reasons:
                    # Later: what an engine's own server has still to end may yet record it.
                    note = self._node.recorder.note_abandoned
                    asyncio.get_running_loop().call_later(ABANDONED_S, note, request, model)


async def _read(receive: Receive) -> list[Message]:
    """The body, which the limit before this has read already, and the end of it."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


class NamedReply:
    """Sends a reply with the headers that name its traces, where a token was sampled.

    What comes before the first token waits for it: the Responses API announces itself.
    """

    def __init__(self, send: Send, request: ServedRequest, node: ServingNode) -> None:
        self._send, self._request, self._node = send, request, node
        self._held: list[Message] = []
        self._is_open = False

    async def __call__(self, message: Message) -> None:
        if self._is_open:
            await self._send(message)
            return
        self._held.append(message)
        if self._is_nameable(message):
            self._is_open = True
            self._name(self._held[0])
            for held in self._held:
                await self._send(held)
            self._held.clear()

    def _is_nameable(self, message: Message) -> bool:
        if message["type"] == "http.response.start":
            return False
        is_last = not message.get("more_body", False)
        is_refused = self._held[0]["status"] >= 400
        return is_last or is_refused or self._request.policy_version is not None

    def _name(self, start: Message) -> None:
        request = self._request
        if start["status"] >= 400:
            if start["status"] in (429, 503):  # an engine's own server knows of no such header
                MutableHeaders(scope=start).setdefault("retry-after", "1")
            return
        if request.policy_version is None:
            return
        caller = request.caller
        token = self._node.tokens.issue(
            TraceScope(
                request.request_id, request.session.session_id, caller.tenant, caller.user_key
            )
        )
        headers = MutableHeaders(scope=start)
        headers["x-tendril-trace-id"] = request.request_id
        headers["x-tendril-policy-version"] = str(request.policy_version)
        headers["x-tendril-feedback-url"] = f"/v1/feedback?token={token}"
