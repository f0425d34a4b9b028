"""The door of a serving node: who asks, in which session, and what the reply's headers name.

ASGI middleware, the same in front of the torch engine's routes and of vLLM's own server. It makes
the `ServedRequest` that the recorder completes below the API, and holds back the start of a reply
until its first byte: only then is the policy version known that sampled the first token.
"""

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.errors import Refused
from serving.context import ServedRequest, served_request
from serving.feedback.tokens import TraceScope
from serving.identity import APPLICATION_PATHS, identify
from serving.node import ServingNode

OPEN_PATHS = frozenset({"/health", "/ready", "/v1/feedback", "/v1/feedback/schema"})
"""No key needed: probes, and feedback, which carries its own token."""
LISTING_PATHS = frozenset({"/v1/models"})


class Door:
    """Lets known callers in to public paths, as `served_request`."""

    def __init__(self, app: ASGIApp, node: ServingNode) -> None:
        self._app, self._node = app, node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "websocket":  # an engine's own server may have some
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http" or path in OPEN_PATHS or scope["method"] == "OPTIONS":
            await self._app(scope, receive, send)
            return
        try:
            key = self._node.authenticate(Headers(scope=scope))
            if path in APPLICATION_PATHS and scope["method"] == "POST":
                messages = await _read(receive)
                body = b"".join(message.get("body", b"") for message in messages)
                request = identify(self._node, key, Headers(scope=scope), path, body)
                self._node.admit(request.lane)
            elif path in APPLICATION_PATHS | LISTING_PATHS:
                await self._app(scope, receive, send)
                return
            else:  # an engine's own server has routes that are nobody else's business
                raise Refused(404, "http_error", f"{scope['method']} {path}: Not Found")
        except Refused as refused:
            await refused.response()(scope, receive, send)
            return
        await self._serve(request, scope, messages, receive, send)

    async def _serve(
        self,
        request: ServedRequest,
        scope: Scope,
        messages: list[Message],
        receive: Receive,
        send: Send,
    ) -> None:
        async def replayed() -> Message:
            return messages.pop(0) if messages else await receive()

        served_request.set(request)
        model = self._node.settings.model_name
        with self._node.telemetry.server_span(
            request.operation, model, Headers(scope=scope)
        ) as span:
            try:
                await self._app(scope, replayed, NamedReply(send, request, self._node))
            finally:
                span.set_attributes(request.span_attributes(model))


async def _read(receive: Receive) -> list[Message]:
    """The body, which the limit before this has read already, and the end of it."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


class NamedReply:
    """Sends a reply with the headers that name its traces, where a token was sampled.

    An engine's own server knows of no `Retry-After`.
    """

    def __init__(self, send: Send, request: ServedRequest, node: ServingNode) -> None:
        self._send, self._request, self._node = send, request, node
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            start, self._start = self._start, None
            self._name(start)
            await self._send(start)
        await self._send(message)

    def _name(self, start: Message) -> None:
        request = self._request
        if start["status"] >= 400:
            if start["status"] in (429, 503):
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
