"""uvicorn's HTTP protocol with limits on what is no body, which it has none of by itself."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65_536
"""Checked after each read of the socket, so a head can be longer by one read."""
HEAD_TIMEOUT_S = 20.0
MAX_BYTES_A_BODY_BYTE = 16
"""Chunks of one byte each bring six; what is beyond this and a head's size is no body."""


class LimitedHttp(HttpToolsProtocol):
    """Refuses a head that is too long, and hangs up on one that does not end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = self._bytes_behind_head = self._body_bytes = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a trailer: it must not pass for a header that was checked
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        self._bytes_behind_head += 0 if self._in_head else len(data)
        super().data_received(data)
        no_body = self._bytes_behind_head - MAX_BYTES_A_BODY_BYTE * self._body_bytes
        if no_body > MAX_HEAD_BYTES:  # trailers without end
            self._hang_up()
        elif self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The head of the request is too long.")

    def _expect_head(self) -> None:
        self._stop_timer()
        self._in_head = True
        self._head_bytes = self._bytes_behind_head = self._body_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._hang_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _hang_up(self) -> None:
        self.transport.close()
