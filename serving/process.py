"""The serving process: engine, public port and admin port, until told to stop."""

import asyncio
import contextlib
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from serving.admin import create_admin_app
from serving.api.app import create_app
from serving.api.text import TextCodec
from serving.feedback.tokens import FeedbackTokens
from serving.keys import application_keys, node_secret
from serving.node import ServingNode
from serving.recorder import Recorder
from serving.spool import Spool
from serving.torch_engine.engine import TorchEngine
from tendril import telemetry
from tendril.log import EventLog, LogUnavailable, SqliteLog
from tendril.model_folder import FIRST_VERSION
from tendril.records import Trace
from tendril.settings import ServingSettings, Settings
from tendril.telemetry import Telemetry

log = logging.getLogger(__name__)

LEDGER_INTERVAL_S = 2.0
FORGET_INTERVAL_S = 600.0
GRACE_S = 10
"""How long requests may finish after a stop."""


class Server(uvicorn.Server):
    """Leaves signals to the process that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def current_version(settings: Settings) -> tuple[int, Path]:
    """What this node served last: the agent's `current.json`, else the first checkpoint."""
    folder = settings.path(settings.shipping.node_folder)
    try:
        version = int(json.loads((folder / "current.json").read_text())["policy_version"])
    except FileNotFoundError:
        return FIRST_VERSION, settings.serving.checkpoint
    except (ValueError, TypeError, KeyError) as error:
        log.error("%s: expected a policy version, got: %s", folder / "current.json", error)
        return FIRST_VERSION, settings.serving.checkpoint
    return version, folder / "versions" / str(version)


def load_engine(settings: Settings) -> tuple[TorchEngine, TextCodec]:
    """The engine on what this node served last, else on the first checkpoint.

    The agent mends a damaged folder, but only beside an engine that answers.
    """
    version, folder = current_version(settings)
    try:
        return _load(settings.serving, version, folder)
    except Exception:  # a library's own, whatever part of the folder is damaged
        if folder == settings.serving.checkpoint:
            raise
        log.exception("%s cannot be loaded: starting on the first checkpoint", folder)
    return _load(settings.serving, FIRST_VERSION, settings.serving.checkpoint)


def _load(serving: ServingSettings, version: int, folder: Path) -> tuple[TorchEngine, TextCodec]:
    codec = TextCodec(folder)
    engine = TorchEngine(
        folder,
        version,
        max_running=serving.max_running,
        max_waiting=serving.max_waiting,
        max_context_tokens=serving.max_context_tokens,
        silence_token_id=codec.token_id(serving.silence_token),
        num_threads=serving.num_threads,
        seed=serving.seed,
    )
    return engine, codec


def build_node(settings: Settings, event_log: EventLog) -> ServingNode:
    """Load the weights and wire the parts."""
    serving = settings.serving
    engine, codec = load_engine(settings)
    silence_token_id = codec.token_id(serving.silence_token)
    spool = Spool(settings.path(Path("serving/spool.db")), event_log, serving.max_spooled)
    secret = node_secret(settings.workspace)

    reporting = telemetry.setup("serving", settings.telemetry)

    def record(trace: Trace) -> None:
        spool.put(trace.session_id, trace)
        report(reporting, trace)

    return ServingNode(
        settings=serving,
        engine=engine,
        codec=codec,
        recorder=Recorder(engine, codec, record),
        spool=spool,
        tokens=FeedbackTokens(secret, serving.feedback_token_ttl_s),
        secret=secret,
        keys=application_keys(settings.workspace, serving.api_keys),
        silence_token_id=silence_token_id,
        random=random.Random(serving.seed),
        telemetry=reporting,
    )


def report(reporting: Telemetry, trace: Trace) -> None:
    """Count and time one decision, streamed or not."""
    about = {"gen_ai.operation.name": "text_completion", "gen_ai.request.model": trace.model}
    reporting.count("tendril.serving.decisions", suppressed=trace.suppressed)
    reporting.record("gen_ai.server.request.duration", trace.latency.total_s, **about)
    reporting.record("gen_ai.server.time_to_first_token", trace.latency.first_token_s, **about)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket with that address, before anything is loaded; raises `OSError` with the cure.

    It does not listen yet: clients are turned away, not kept waiting, while the model loads.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(
            error.errno,
            f"cannot listen on {host}:{port}: {error.strerror}. Stop what holds the port, or set "
            "serving.port and serving.admin_port to others",
        ) from error
    return bound


def run(settings: Settings, stop: threading.Event) -> None:
    """Serve until `stop` is set, then finish what runs and flush the spool."""
    serving = settings.serving
    with (
        bound_socket(serving.host, serving.port) as public,
        bound_socket("127.0.0.1", serving.admin_port) as admin,
    ):
        event_log = SqliteLog(settings.path(settings.log.path))
        node = build_node(settings, event_log)
        try:
            asyncio.run(_serve(node, event_log, stop, public, admin))
        finally:
            node.engine.close()
            node.spool.flush()
            _append_ledger(node, event_log)
            node.spool.close()
            event_log.close()
            node.telemetry.shutdown()


async def _serve(
    node: ServingNode,
    event_log: EventLog,
    stop: threading.Event,
    public: socket.socket,
    admin: socket.socket,
) -> None:
    """Both servers and the watch; when one of them ends or fails, all do."""
    servers = [
        (Server(uvicorn.Config(app, log_level="warning", access_log=False,
                               timeout_graceful_shutdown=GRACE_S)), bound)
        for app, bound in ((create_app(node), public), (create_admin_app(node.engine), admin))
    ]  # fmt: skip

    async def serve(server: Server, bound: socket.socket) -> None:
        try:
            await server.serve(sockets=[bound])
        finally:
            stop.set()

    async with asyncio.TaskGroup() as tasks:
        for server, bound in servers:
            tasks.create_task(serve(server, bound))
        await _watch(node, event_log, stop)
        for server, _ in servers:
            server.should_exit = True


async def _watch(node: ServingNode, event_log: EventLog, stop: threading.Event) -> None:
    """Write the ledger and report every few seconds, until `stop`."""
    next_ledger = next_forget = 0.0
    while not stop.is_set():
        await asyncio.sleep(0.1)
        if time.monotonic() >= next_ledger:
            next_ledger = time.monotonic() + LEDGER_INTERVAL_S
            _report_load(node)
            await asyncio.to_thread(_append_ledger, node, event_log)
        if time.monotonic() >= next_forget:
            next_forget = time.monotonic() + FORGET_INTERVAL_S
            await asyncio.to_thread(_forget_expired, node)


def _report_load(node: ServingNode) -> None:
    stats = node.engine.stats()
    node.telemetry.gauge("tendril.serving.running", stats.num_running)
    node.telemetry.gauge("tendril.serving.waiting", stats.num_waiting)
    node.telemetry.gauge("tendril.serving.policy.version", stats.policy_version)
    node.telemetry.gauge("tendril.serving.spool.depth", node.spool.depth)


def _append_ledger(node: ServingNode, event_log: EventLog) -> None:
    try:
        event_log.append([("serving", node.spool.ledger(time.time()))])
    except LogUnavailable as error:
        log.warning("the event log is away: %s", error)


def _forget_expired(node: ServingNode) -> None:
    """Event ids whose feedback tokens have expired cannot come again."""
    try:
        node.spool.forget_seen(before=time.time() - node.settings.feedback_token_ttl_s - 1)
    except LogUnavailable as error:
        log.warning("old event ids stay: %s", error)
