"""Requests that vLLM's server fails on before it asks its engine: the client's fault, not ours."""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.errors import Refused
from serving.context import served_request

log = logging.getLogger(__name__)


class RefuseUnread:
    """ASGI middleware around vLLM's server: 400, with the failure in our log, instead of its 500.

    Until the engine is asked all it does is to read and render what the client sent.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_unread = False

        async def checked(message: Message) -> None:
            nonlocal is_unread
            if message["type"] == "http.response.start" and message["status"] == 500:
                request = served_request.get(None)
                is_unread = request is not None and not request.is_asked
            if not is_unread:
                await send(message)

        try:
            await self._app(scope, receive, checked)
        except Exception as error:
            if not is_unread:
                raise
            # Its words could be the user's.
            log.warning("vLLM's server could not read a request: %s", type(error).__name__)
        if is_unread:
            message = "the request's fields were understood one by one, and not together"
            refused = Refused(400, "unreadable_request", message)
            await refused.response()(scope, receive, send)
