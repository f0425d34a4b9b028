"""A serving node from its settings: which weights, which engine, and the parts around it."""

import contextlib
import json
import logging
import random
import time
from pathlib import Path

from serving.context import ServedRequest, operation
from serving.engine import Engine
from serving.feedback.tokens import FeedbackTokens
from serving.keys import key_ring, node_secret
from serving.node import ServingNode
from serving.recorder import Decision, Recorder, as_agreed
from serving.sessions import SessionIndex
from serving.spool import Spool
from serving.text import TextCodec
from serving.torch_engine.engine import TorchEngine
from tendril import telemetry
from tendril.consent import ConsentFollower
from tendril.log import EventLog, LogUnavailable
from tendril.model_folder import FIRST_VERSION
from tendril.records import Trace
from tendril.settings import ServingSettings, Settings
from tendril.telemetry import Telemetry

log = logging.getLogger(__name__)


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


async def load_engine(settings: Settings) -> tuple[Engine, TextCodec]:
    """The engine on what this node served last, else on the first checkpoint.

    The agent mends a damaged folder, but only beside an engine that answers.
    """
    version, folder = current_version(settings)
    try:
        return await _load(settings, version, folder)
    except Exception:  # a library's own, whatever part of the folder is damaged
        if folder == settings.serving.checkpoint:
            raise
        log.exception("%s cannot be loaded: starting on the first checkpoint", folder)
    return await _load(settings, FIRST_VERSION, settings.serving.checkpoint)


async def _load(settings: Settings, version: int, folder: Path) -> tuple[Engine, TextCodec]:
    serving, codec = settings.serving, TextCodec(folder)
    if serving.engine == "vllm":
        from serving.vllm_engine.launch import launch

        scratch = settings.path(serving.folder / "patches")
        return await launch(folder, version, serving, scratch), codec
    return _torch_engine(serving, version, folder, codec), codec


def _torch_engine(
    serving: ServingSettings, version: int, folder: Path, codec: TextCodec
) -> TorchEngine:
    return TorchEngine(
        folder,
        version,
        max_running=serving.max_running,
        max_waiting=serving.max_waiting,
        max_context_tokens=serving.max_context_tokens,
        silence_token_id=codec.token_id(serving.silence_token),
        num_threads=serving.num_threads,
        lent_slots=serving.lent_slots,
        seed=serving.seed,
    )


def build_node(
    settings: Settings, event_log: EventLog, engine: Engine, codec: TextCodec
) -> ServingNode:
    """Wire the parts around a loaded engine."""
    serving = settings.serving
    name = settings.shipping.node
    spool_path = settings.path(serving.folder / "spool.db")
    spool = Spool(spool_path, event_log, serving.max_spooled, node=name)
    secret = node_secret(settings.workspace)
    reporting = telemetry.setup("serving", settings.telemetry)
    sessions = SessionIndex()

    def record(trace: Trace, decision: Decision) -> None:
        trace = as_agreed(trace, consents.consents)
        spool.put(trace.session_id, trace)
        remember(sessions, decision.request, decision.text.text, trace.trace_id)
        report(reporting, trace)

    consents = ConsentFollower(event_log, settings.privacy.tenants)
    with contextlib.suppress(LogUnavailable):  # the watch goes on trying
        consents.follow()
    return ServingNode(
        name=name,
        settings=serving,
        engine=engine,
        codec=codec,
        recorder=Recorder(engine, codec, record),
        spool=spool,
        tokens=FeedbackTokens(secret, serving.feedback_token_ttl_s),
        secret=secret,
        keys=key_ring(settings),
        sessions=sessions,
        consents=consents,
        silence_token_id=codec.token_id(serving.silence_token),
        random=random.Random(serving.seed),
        telemetry=reporting,
    )


def remember(sessions: SessionIndex, request: ServedRequest, reply: str, trace_id: str) -> None:
    """So that the conversation's next turn is found."""
    sessions.remember(
        request.caller,
        request.session,
        request.history,
        reply,
        trace_id,
        time.monotonic(),
        request.response_id,
    )


def report(reporting: Telemetry, trace: Trace) -> None:
    """Count and time one decision, streamed or not."""
    about = {
        "gen_ai.operation.name": operation(trace.route),
        "gen_ai.request.model": trace.model,
    }
    reporting.count("tendril.serving.decisions", suppressed=trace.suppressed, lane=trace.lane)
    if trace.untrainable is not None:
        reporting.count("tendril.serving.untrainable", reason=trace.untrainable)
    reporting.record("gen_ai.server.request.duration", trace.latency.total_s, **about)
    if trace.completion_token_ids:
        reporting.record("gen_ai.server.time_to_first_token", trace.latency.first_token_s, **about)
    if (num_later := len(trace.completion_token_ids) - 1) > 0:
        later_s = trace.latency.total_s - trace.latency.first_token_s
        reporting.record("gen_ai.server.time_per_output_token", later_s / num_later, **about)
