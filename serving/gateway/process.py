"""The gateway process: one public port in front of the replicas, until told to stop."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator

import aiohttp
import uvicorn
import uvloop

from serving.cors import with_cors
from serving.gateway.app import Gateway
from serving.gateway.http_protocol import LimitedHttp
from serving.gateway.proxy import Proxy
from serving.gateway.replicas import ReplicaPool
from serving.http_server import Server, bound_socket, freeze_heap, tls_options
from serving.keys import internal_token, key_ring, node_secret
from tendril import telemetry
from tendril.settings import GatewaySettings, ReplicaSettings, Settings
from tendril.telemetry import Telemetry

CLIENT_KEEP_ALIVE_S = 75
REPLICA_KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn, the replicas' server, closes an idle connection."""
CHECK_S = 0.1
AUTOMATIC = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""What aiohttp would add to a request that lacks it."""


def run(settings: Settings, stop: threading.Event) -> None:
    """Serve until `stop` is set, then drain."""
    gateway = settings.gateway
    reporting = telemetry.setup("gateway", settings.telemetry)
    with bound_socket(gateway.host, gateway.port, "gateway.port") as public:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(settings, reporting, stop, public))
        finally:
            reporting.shutdown()


async def _serve(
    settings: Settings, reporting: Telemetry, stop: threading.Event, public: socket.socket
) -> None:
    """The server, the watch over replicas and the one over `stop`; when one fails, all end."""
    async with _session(settings.gateway) as session:
        pool = ReplicaPool(replicas_of(settings), settings.gateway, session, reporting)
        token = internal_token(node_secret(settings.workspace))
        proxy = Proxy(session, settings.gateway, token, reporting)
        gateway = Gateway(settings.gateway, key_ring(settings), pool, proxy, reporting)
        server = Server(server_config(gateway, settings))
        await pool.ask_all()
        freeze_heap()

        async def serve() -> None:
            try:
                await server.serve(sockets=[public])
                await _abort_connections(server)
            finally:
                stop.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve())
            following = tasks.create_task(pool.follow())
            while not stop.is_set():
                await asyncio.sleep(CHECK_S)
                reporting.gauge("tendril.gateway.running", gateway.running)
            gateway.drain()
            if not server.should_exit:
                await asyncio.sleep(settings.gateway.drain_notice_s)
            server.should_exit = True
            following.cancel()


async def _abort_connections(server: Server) -> None:
    """What is left after the drain: a TLS client may keep its goodbye to itself for long."""
    for connection in list(server.server_state.connections):
        if isinstance(connection, LimitedHttp):
            connection.transport.abort()
    await asyncio.sleep(CHECK_S)  # the loop closes them


def server_config(gateway: Gateway, settings: Settings) -> uvicorn.Config:
    """Only what a proxy needs of uvicorn."""
    return uvicorn.Config(
        with_cors(gateway, settings.serving),
        http=LimitedHttp,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=CLIENT_KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.gateway.drain_s,
        **tls_options(settings.access),
    )


def replicas_of(settings: Settings) -> tuple[ReplicaSettings, ...]:
    """The configured ones, else the serving node of this machine."""
    if settings.gateway.replicas:
        return settings.gateway.replicas
    scheme = "https" if settings.access.tls_certificate else "http"
    return (ReplicaSettings(url=f"{scheme}://127.0.0.1:{settings.serving.port}"),)


@contextlib.asynccontextmanager
async def _session(gateway: GatewaySettings) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections to replicas: no cookies, no redirects, no decompression, nothing added."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=REPLICA_KEEP_ALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=AUTOMATIC,
        max_line_size=65_536,
        max_field_size=65_536,
        timeout=aiohttp.ClientTimeout(
            total=None,
            sock_connect=gateway.connect_timeout_s,
            sock_read=gateway.silence_timeout_s,
        ),
    ) as session:
        yield session
