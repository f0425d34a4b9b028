"""The serving process: engine, public port and admin port, until told to stop."""

import asyncio
import logging
import socket
import threading
import time
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp

from serving.admin import create_admin_app
from serving.api.app import create_app
from serving.build import build_node, load_engine
from serving.http_server import Server, bound_socket, freeze_heap, tls_options
from serving.node import ServingNode
from tendril.files import sole_user
from tendril.log import EventLog, LogUnavailable, open_log
from tendril.settings import Settings

log = logging.getLogger(__name__)

LEDGER_INTERVAL_S = 2.0
FORGET_INTERVAL_S = 600.0
CONSENT_INTERVAL_S = 0.5
GRACE_S = 10
"""How long requests may finish after a stop."""


def run(settings: Settings, stop: threading.Event) -> None:
    """Serve until `stop` is set, then finish what runs and flush the spool."""
    serving = settings.serving
    with (
        bound_socket(serving.host, serving.port, "serving.port") as public,
        bound_socket("127.0.0.1", serving.admin_port, "serving.admin_port") as admin,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        event_log = open_log(settings)
        with sole_user(settings.path(serving.folder), "serving.folder"):
            node = build_node(settings, event_log, *runner.run(load_engine(settings)))
            try:
                runner.run(_serve(node, settings, event_log, stop, public, admin))
            finally:
                node.engine.close()
                node.spool.flush()
                _append_ledger(node, event_log)
                node.spool.close()
                node.consents.close()
                event_log.close()
                node.telemetry.shutdown()


async def _serve(
    node: ServingNode,
    settings: Settings,
    event_log: EventLog,
    stop: threading.Event,
    public: socket.socket,
    admin: socket.socket,
) -> None:
    """Both servers and the watch; when one of them ends or fails, all do."""
    app = create_app(node, await _engine_app(node))
    servers = [
        (_server(app, **tls_options(settings.access)), public),
        (_server(create_admin_app(node)), admin),
    ]

    async def serve(server: Server, bound: socket.socket) -> None:
        try:
            await server.serve(sockets=[bound])
        finally:
            stop.set()

    freeze_heap()
    async with asyncio.TaskGroup() as tasks:
        for server, bound in servers:
            tasks.create_task(serve(server, bound))
        await _watch(node, event_log, stop)
        node.draining.set()
        for server, _ in servers:
            server.should_exit = True


def _server(app: ASGIApp, **options: Any) -> Server:
    return Server(
        uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S, **options
        )
    )


async def _engine_app(node: ServingNode) -> ASGIApp | None:
    """The OpenAI server that the engine brings along, if it does."""
    if node.settings.engine != "vllm":
        return None
    from serving.vllm_engine.engine import VllmEngine
    from serving.vllm_engine.launch import openai_app
    from serving.vllm_engine.unread import RefuseUnread

    assert isinstance(node.engine, VllmEngine)
    return RefuseUnread(await openai_app(node.engine, node))


async def _watch(node: ServingNode, event_log: EventLog, stop: threading.Event) -> None:
    """Write the ledger and report every few seconds, until `stop`.

    Raises what ended the engine: a process that cannot sample is no use, and is started again.
    """
    next_ledger = next_forget = next_consents = 0.0
    while not stop.is_set():
        await asyncio.sleep(0.1)
        node.engine.check()
        if time.monotonic() >= next_consents:
            next_consents = time.monotonic() + CONSENT_INTERVAL_S
            await asyncio.to_thread(follow_consents, node)
        if time.monotonic() >= next_ledger:
            next_ledger = time.monotonic() + LEDGER_INTERVAL_S
            _report_load(node)
            await asyncio.to_thread(_append_ledger, node, event_log)
        if time.monotonic() >= next_forget:
            next_forget = time.monotonic() + FORGET_INTERVAL_S
            await asyncio.to_thread(_forget_expired, node)


def _report_load(node: ServingNode) -> None:
    stats = node.engine.stats()
    for name, value in (
        ("running", stats.num_running),
        ("waiting", stats.num_waiting),
        ("policy.version", stats.policy_version),
        ("spool.depth", node.spool.depth),
        ("spool.limit", node.settings.max_spooled),
    ):
        node.telemetry.gauge(f"tendril.serving.{name}", value, node=node.name)


def _append_ledger(node: ServingNode, event_log: EventLog) -> None:
    try:
        event_log.append([("serving", node.spool.ledger(time.time()))])
    except LogUnavailable as error:
        log.warning("the event log is away: %s", error)


def follow_consents(node: ServingNode) -> None:
    """Who withdraws consent elsewhere is refused here within a second."""
    try:
        persons = node.consents.follow()
    except LogUnavailable as error:
        log.warning("consents stay as they were: %s", error)
    else:
        node.sessions.forget(persons)


def _forget_expired(node: ServingNode) -> None:
    """Event ids whose feedback tokens have expired cannot come again."""
    try:
        node.spool.forget_seen(before=time.time() - node.settings.feedback_token_ttl_s - 1)
    except LogUnavailable as error:
        log.warning("old event ids stay: %s", error)
