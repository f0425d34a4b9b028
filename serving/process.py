"""The serving process: engine, public port and admin port, until told to stop."""

import asyncio
import contextlib
import json
import logging
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from serving.admin import create_admin_app
from serving.app import create_app
from serving.feedback_tokens import FeedbackTokens
from serving.node import ServingNode
from serving.recorder import Recorder
from serving.secrets import application_keys, node_secret
from serving.spool import Spool
from serving.text import TextCodec
from serving.torch_engine import TorchEngine
from tendril import telemetry
from tendril.log import LogUnavailable, SqliteLog
from tendril.records import Trace
from tendril.settings import Settings

log = logging.getLogger(__name__)

LEDGER_INTERVAL_S = 2.0
FIRST_VERSION = 1


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
    return version, folder / "versions" / str(version)


def build_node(settings: Settings, event_log: SqliteLog) -> ServingNode:
    """Load the weights and wire the parts."""
    serving = settings.serving
    version, folder = current_version(settings)
    codec = TextCodec(folder)
    silence_token_id = codec.token_id(serving.silence_token)
    engine = TorchEngine(
        folder,
        version,
        max_running=serving.max_running,
        max_waiting=serving.max_waiting,
        max_context_tokens=serving.max_context_tokens,
        silence_token_id=silence_token_id,
        num_threads=serving.num_threads,
        seed=serving.seed,
    )
    spool = Spool(settings.path(Path("serving/spool.db")), event_log, serving.max_spooled)
    secret = node_secret(settings.workspace)

    def record(trace: Trace) -> None:
        spool.put(trace.session_id, trace)

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
        telemetry=telemetry.setup("serving", settings.telemetry),
    )


def run(settings: Settings, stop: threading.Event) -> None:
    """Serve until `stop` is set, then finish what runs and flush the spool."""
    event_log = SqliteLog(settings.path(settings.log.path))
    node = build_node(settings, event_log)
    try:
        asyncio.run(_serve(settings, node, event_log, stop))
    finally:
        node.engine.close()
        node.spool.close()
        node.telemetry.shutdown()


async def _serve(
    settings: Settings, node: ServingNode, event_log: SqliteLog, stop: threading.Event
) -> None:
    serving = settings.serving
    servers = [
        Server(uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False))
        for app, host, port in (
            (create_app(node), serving.host, serving.port),
            (create_admin_app(node.engine), "127.0.0.1", serving.admin_port),
        )
    ]
    watching = asyncio.create_task(_watch(servers, node, event_log, stop))
    await asyncio.gather(*(server.serve() for server in servers))
    stop.set()
    await watching


async def _watch(
    servers: list[Server], node: ServingNode, event_log: SqliteLog, stop: threading.Event
) -> None:
    """Write the ledger every few seconds; pass a stop on to the servers."""
    next_ledger = 0.0
    while not stop.is_set():
        await asyncio.sleep(0.1)
        if time.monotonic() >= next_ledger:
            next_ledger = time.monotonic() + LEDGER_INTERVAL_S
            node.telemetry.gauge("tendril.serving.spool.depth", node.spool.depth)
            await asyncio.to_thread(_append_ledger, node, event_log)
    for server in servers:
        server.should_exit = True


def _append_ledger(node: ServingNode, event_log: SqliteLog) -> None:
    try:
        event_log.append([("serving", node.spool.ledger(time.time()))])
    except LogUnavailable as error:
        log.warning("the event log is away: %s", error)
