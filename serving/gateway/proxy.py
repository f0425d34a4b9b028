"""One request to one replica and its reply back, streamed; another replica only before that.

Once a replica has begun to answer nothing is retried: its tokens were sampled and recorded.
"""

import asyncio
import contextlib
import io
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import aiohttp
from multidict import CIMultiDict
from starlette.types import Receive, Send
from yarl import URL

from serving.api.errors import Refused
from serving.gateway.headers import RawHeaders, to_client, to_replica
from serving.gateway.routing import Attempt
from tendril.settings import GatewaySettings
from tendril.telemetry import Telemetry

log = logging.getLogger(__name__)

RETRIED_STATUS = frozenset({429, 502, 503})
"""Not taken up there: another replica may have room."""
WHOLE_REPLY_BYTES = 65_536
"""Replies up to this size are sent in one piece, and so never cut off half-way."""
LARGE_BODY_BYTES = 2**20
"""From here on aiohttp wants a file, so as to write in pieces."""
CUT_OFF = (
    b'\n\ndata: {"error": {"message": "the replica went away in the middle of its reply", '
    b'"type": "api_error", "param": null, "code": "replica_gone"}}\n\n'
)
"""Ends an event stream that was cut off; OpenAI clients raise an error for it."""


class Outgoing(NamedTuple):
    """A request as it goes to whichever replica."""

    method: str
    target: str
    """Path and query, exactly as they came."""
    headers: RawHeaders
    body: bytes


class Reply:
    """The client's side of the exchange."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = self.is_events = False
        self.status = 0

    async def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.started, self.status = True, status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


class ReplicaFailed(Exception):
    """No reply came; another replica may be asked if `retry`."""

    def __init__(self, reason: str, *, retry: bool, status: int = 502) -> None:
        super().__init__(reason)
        self.reason, self.retry, self.status = reason, retry, status


class Proxy:
    """Forwards requests over one pool of connections."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        settings: GatewaySettings,
        token: str,
        telemetry: Telemetry,
    ) -> None:
        self._session, self._settings, self._telemetry = session, settings, telemetry
        self._token = token
        self.draining = False

    async def forward(
        self, request: Outgoing, attempts: Sequence[Attempt], receive: Receive, reply: Reply
    ) -> None:
        """Answer the client from the first replica that answers, until the client goes.

        Raises `Refused` while nothing has been sent.
        """
        work = self._try_each(request, attempts, reply)
        try:
            await _while_connected(work, receive, self._settings.request_timeout_s)
        except TimeoutError as error:
            await self._cut(reply, ReplicaFailed("out of time", retry=False, status=504), error)
        except ReplicaFailed as failed:
            await self._cut(reply, failed, failed)

    async def _cut(self, reply: Reply, failed: ReplicaFailed, cause: Exception) -> None:
        if not reply.started:
            code = "replica_timeout" if failed.status == 504 else "replica_unavailable"
            raise Refused(
                failed.status, code, f"no replica answered: {failed.reason}", retry_s=1
            ) from cause
        log.warning("a reply was cut off: %s", failed.reason)
        self._telemetry.count("tendril.gateway.cut_off")
        if reply.is_events:
            await reply.write(CUT_OFF, more=False)
        # Else the reply stays without its end, and the server closes the connection.

    async def _try_each(self, request: Outgoing, attempts: Sequence[Attempt], reply: Reply) -> None:
        for number, attempt in enumerate(attempts, 1):
            left = attempts[number:]
            has_others = any(later.replica is not attempt.replica for later in left)
            attempt.replica.running += 1
            try:
                await self._try(request, attempt, reply, has_others=has_others)
                return
            except ReplicaFailed as failed:
                if not left or reply.started or not failed.retry:
                    raise
                log.warning("%s: %s; trying another", attempt.replica.url, failed.reason)
                self._telemetry.count("tendril.gateway.retries")
            finally:
                attempt.replica.running -= 1

    async def _try(
        self, request: Outgoing, attempt: Attempt, reply: Reply, *, has_others: bool
    ) -> None:
        upstream = await self._open(request, attempt)
        try:
            if upstream.status in RETRIED_STATUS and has_others:
                raise ReplicaFailed(f"answered {upstream.status}", retry=True)
            await self._relay(upstream, reply)
        except TimeoutError as error:  # aiohttp's own is one
            raise ReplicaFailed("silent in the middle of its reply", retry=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ReplicaFailed("gone in the middle of its reply", retry=False) from error
        finally:
            upstream.close() if not upstream.content.at_eof() else upstream.release()

    async def _open(self, request: Outgoing, attempt: Attempt) -> aiohttp.ClientResponse:
        """The reply's status and headers."""
        replica = attempt.replica
        headers = self._headers(request, attempt)
        body = io.BytesIO(request.body) if len(request.body) > LARGE_BODY_BYTES else request.body
        try:
            return await self._session.request(
                request.method,
                URL(replica.url + request.target, encoded=True),
                headers=headers,
                data=body or None,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            replica.ready = False  # until it answers when asked again
            raise ReplicaFailed("cannot be reached", retry=True) from error
        except TimeoutError as error:  # it may be at work: nobody else starts the same
            raise ReplicaFailed("silent", retry=False, status=504) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ReplicaFailed("hung up before its reply", retry=True) from error

    def _headers(self, request: Outgoing, attempt: Attempt) -> CIMultiDict[str]:
        own = {"x-tendril-gateway": self._token}
        if attempt.assignment is not None:
            own["x-tendril-arm"] = attempt.assignment.group
            own["x-tendril-propensity"] = repr(attempt.assignment.propensity)
        if request.body or request.method in ("POST", "PUT", "PATCH"):
            own["content-length"] = str(len(request.body))
        return to_replica(request.headers, own)

    async def _relay(self, upstream: aiohttp.ClientResponse, reply: Reply) -> None:
        headers = to_client(upstream.raw_headers, last=self.draining)
        length = upstream.content_length
        if length is not None and length <= WHOLE_REPLY_BYTES:
            body = await upstream.read()
            await reply.start(upstream.status, headers)
            await reply.write(body, more=False)
            return
        reply.is_events = upstream.headers.get("content-type", "").startswith("text/event-stream")
        await reply.start(upstream.status, headers)
        async for chunk in upstream.content.iter_any():
            await reply.write(chunk, more=True)
        await reply.write(b"", more=False)


async def _while_connected(work: Awaitable[None], receive: Receive, timeout_s: float) -> None:
    """Do `work` until the client goes, which ends it quietly, or raise `TimeoutError`."""
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        async with asyncio.timeout(timeout_s) as limit:
            gone.add_done_callback(_ender(limit))
            await work
    except TimeoutError:
        if not gone.done():
            raise
    finally:
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _ender(limit: asyncio.Timeout) -> Callable[[asyncio.Future[None]], None]:
    def end(gone: asyncio.Future[None]) -> None:
        if not gone.cancelled():
            with contextlib.suppress(RuntimeError):  # the work has just ended by itself
                limit.reschedule(asyncio.get_running_loop().time())

    return end
