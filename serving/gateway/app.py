"""The gateway's ASGI application: who may pass, with what, to which replica.

Plain ASGI without a framework: there are two paths of its own, and everything else is forwarded.
"""

import random
from collections.abc import Callable, Mapping

import msgspec
from starlette.types import Receive, Scope, Send

from serving.access import FEEDBACK_PATHS, key_of, lane_of
from serving.api.errors import Refused, not_found
from serving.gateway.body import (
    ClientGone,
    identity_of,
    parse_asked,
    read_body,
    reported_request,
    tokens_at_most,
)
from serving.gateway.proxy import Outgoing, Proxy, Reply
from serving.gateway.quotas import Quotas
from serving.gateway.replicas import GROUPS, ReplicaPool
from serving.gateway.routing import Attempt, attempts_for, by_preference, uniform
from serving.keys import ApplicationKey, KeyRing
from tendril.settings import GatewaySettings
from tendril.telemetry import Telemetry

METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"})
PUBLIC = "/v1/"
RETRY_S = 1

Headers = Mapping[bytes, bytes]


class Gateway:
    """Stateless but for counts: any number of copies run side by side."""

    def __init__(
        self,
        settings: GatewaySettings,
        keys: KeyRing,
        pool: ReplicaPool,
        proxy: Proxy,
        telemetry: Telemetry,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._keys, self._pool, self._proxy = settings, keys, pool, proxy
        self._telemetry, self._random = telemetry, random
        self._quotas = Quotas(settings.default_requests_per_minute)
        self._running = {"open": 0, "keyed": 0}

    @property
    def running(self) -> int:
        """Requests in hand."""
        return sum(self._running.values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"expected an HTTP request, got {scope['type']}")
        reply = Reply(send)
        try:
            if scope["path"] in ("/health", "/ready"):
                await self._own(scope["path"], reply)
            else:
                await self._counted(scope, receive, reply)
        except Refused as refused:
            self._telemetry.count("tendril.gateway.refused", reason=refused.code)
            await _refuse(reply, refused)
        except ClientGone:
            return

    def drain(self) -> None:
        """Not ready from here on; what comes all the same is served, its connection then closed."""
        self._proxy.draining = True

    async def _own(self, path: str, reply: Reply) -> None:
        num_ready = {group: len(self._pool.ready(group)) for group in GROUPS}
        is_ready = not self._proxy.draining and any(num_ready.values())
        about = {
            "status": "ok" if is_ready else "not ready",
            "draining": self._proxy.draining,
            "num_running": self.running,
            "ready_replicas": num_ready,
        }
        status = 503 if path == "/ready" and not is_ready else 200
        await _answer(reply, status, about, {})

    async def _counted(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """Those without a key are counted apart: nobody can shut out who has one."""
        lane = "open" if _is_open(scope) else "keyed"
        if self._running[lane] >= self._settings.max_running:
            message = f"expected at most {self._settings.max_running} requests at once"
            raise Refused(429, "overloaded", message, retry_s=RETRY_S)
        self._running[lane] += 1
        try:
            await self._pass(scope, receive, reply)
        finally:
            self._running[lane] -= 1
        self._telemetry.count("tendril.gateway.requests", status=reply.status)

    async def _pass(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        _check_target(scope)
        headers: Headers = dict(reversed(scope["headers"]))  # the first of a name, as replicas do
        key = None if _is_open(scope) else self._admitted(headers)
        settings = self._settings
        body = await read_body(
            receive,
            headers.get(b"content-length"),
            settings.max_body_bytes,
            settings.body_timeout_s,
        )
        target = scope["raw_path"].decode("ascii")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        attempts = self._attempts(scope, headers, key, body)
        if not attempts:
            raise Refused(503, "no_replica", "no replica is ready", retry_s=RETRY_S)
        if len(attempts) == 1:  # a connection that it closes just when it is used again is no end
            attempts *= 2
        request = Outgoing(scope["method"], target, scope["headers"], body)
        await self._proxy.forward(request, attempts[: settings.max_attempts], receive, reply)

    def _admitted(self, headers: Headers) -> ApplicationKey:
        """The caller's key, one request of its quota taken. Raises `Refused` 401, 403 or 429."""
        key = key_of(
            self._keys,
            headers.get(b"authorization", b"").decode(errors="replace"),
            headers.get(b"x-api-key", b"").decode(errors="replace"),
        )
        lane_of(key, headers.get(b"x-tendril-lane", b"online").decode(errors="replace"))
        self._quotas.take_request(key)
        return key

    def _attempts(
        self, scope: Scope, headers: Headers, key: ApplicationKey | None, body: bytes
    ) -> list[Attempt]:
        live, canary = self._pool.ready("live"), self._pool.ready("canary")
        if key is None:
            about = reported_request(body, scope["query_string"])
            return [Attempt(replica, None) for replica in by_preference([*live, *canary], about)]
        asked = parse_asked(body)
        if key.tokens_per_minute is not None and body:
            self._quotas.take_tokens(key, tokens_at_most(body, asked))
        user, session = identity_of(
            asked, headers.get(b"x-tendril-user", b""), headers.get(b"x-tendril-session-id", b"")
        )
        who = ("user", user) if user else ("session", session)
        # Of nobody in particular nothing can be sticky; a whole tenant in one arm would be worse.
        unit = uniform(key.tenant, *who) if any(who[1]) else self._random()
        return attempts_for(
            live,
            canary,
            unit=unit,
            canary_share=self._settings.canary_share,
            affinity="\0".join((key.tenant, key.name, session or user)),
        )


def _check_target(scope: Scope) -> None:
    """Raises `Refused` 404 for all but public paths, however they are spelt, and 405."""
    path: str = scope["path"]
    segments = path[len(PUBLIC) :].split("/")
    spelt_plainly = path.startswith(PUBLIC) and scope["raw_path"].startswith(PUBLIC.encode())
    hidden = any(segment in (".", "..") for segment in segments) or "" in segments[:-1]
    if not spelt_plainly or hidden or "\\" in path or not path.isprintable():
        raise not_found(f"{scope['method']} {path[:80]!r}", path)
    if scope["method"] not in METHODS:
        raise Refused(405, "http_error", f"{scope['method']} {path[:80]!r}: Method Not Allowed")


def _is_open(scope: Scope) -> bool:
    """No key needed: feedback carries its own token, and a browser's preflight carries nothing."""
    return scope["method"] == "OPTIONS" or scope["path"] in FEEDBACK_PATHS


async def _refuse(reply: Reply, refused: Refused) -> None:
    if reply.started:
        return
    # The body may not have been read, and nobody wants it.
    extra = refused.headers | {"connection": "close"}
    await _answer(reply, refused.status, refused.body(), extra)


async def _answer(reply: Reply, status: int, content: object, extra: Mapping[str, str]) -> None:
    body = msgspec.json.encode(content)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in extra.items()),
    ]
    await reply.start(status, headers)
    await reply.write(body, more=False)
