"""The real application in front of an engine that says what a test wrote for it."""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import openai
import uvicorn

from serving.api.app import create_app
from serving.build import build_node
from serving.engine import EngineBusy, EngineRequest, EngineStats, SampledToken, SwapResult
from serving.http_server import Server
from serving.node import ServingNode
from serving.recorder import Decision, Recorder
from serving.text import TextCodec
from tendril.log import MemoryLog
from tendril.records import Lane, Trace, decode
from tests.serving.live_server import KEY, make_settings

CONTEXT = 4096
Script = Callable[[EngineRequest, int], "Line"]


@dataclass
class Line:
    """What one request is answered."""

    text: str = ""
    error: Exception | None = None
    """Raised after the text."""
    token_s: float = 0.0
    """How long each token takes."""


class ScriptedEngine:
    """Gives each request its line, byte by byte, at log-prob -0.5; see `Engine`."""

    def __init__(self, codec: TextCodec, script: Script) -> None:
        self._codec, self._script = codec, script
        self.requests: list[EngineRequest] = []
        self.num_running = 0
        self.is_full = False

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SampledToken, None]:
        self.requests.append(request)
        line = self._script(request, len(self.requests) - 1)
        ids = self._codec.encode(line.text)[: request.max_tokens]
        end = None if line.error else "length" if len(ids) == request.max_tokens else "stop"
        self.num_running += 1
        try:
            for position, token in enumerate(ids):
                await asyncio.sleep(line.token_s)
                finish = end if position == len(ids) - 1 else None
                top = tuple((token + i, -0.5 - i) for i in range(request.num_top_logprobs))
                yield SampledToken(token, -0.5, 1, finish, top_logprobs=top)  # type: ignore[arg-type]
            if line.error is not None:
                raise line.error
        finally:
            self.num_running -= 1

    def stage(self, policy_version: int, folder: Path) -> str:
        raise NotImplementedError

    def swap(self, policy_version: int) -> SwapResult:
        raise NotImplementedError

    def stats(self) -> EngineStats:
        return EngineStats(1, "digest", self.num_running, 0)

    def check_room(self, lane: Lane) -> None:
        if self.is_full:
            raise EngineBusy("full")

    def check(self) -> None: ...

    def close(self) -> None:
        pass


@dataclass
class Stage:
    """The running application."""

    url: str
    codec: TextCodec
    engine: ScriptedEngine
    script: Script = lambda request, index: Line("hi")
    traces: list[Trace] = field(default_factory=list)
    failures: dict[int, Exception] = field(default_factory=dict)
    """Raised instead of recording the trace of that choice."""

    def record(self, trace: Trace, decision: Decision) -> None:
        if decision.choice in self.failures:
            raise self.failures[decision.choice]
        self.traces.append(trace)

    def says(self, text: str, **line: Any) -> None:
        self.script = lambda request, index: Line(text, **line)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0)

    def reset(self) -> None:
        self.says("hi")
        self.traces.clear()
        self.failures.clear()
        self.engine.requests.clear()

    def wait_idle(self, timeout_s: float = 5.0) -> None:
        deadline = time.monotonic() + timeout_s
        while self.engine.num_running:
            assert time.monotonic() < deadline
            time.sleep(0.005)


class App(NamedTuple):
    """A running application."""

    url: str
    key: str
    node: ServingNode
    log: MemoryLog

    def traces(self) -> list[Trace]:
        """All that are on the log."""
        self.node.spool.flush()
        reader = self.log.reader("test", [Trace.TOPIC])
        return [decode(Trace, record.value) for record in reader.poll(100_000, 0)]

    def wait_idle(self, timeout_s: float = 10.0) -> None:
        """Until nothing is sampled for anybody."""
        deadline = time.monotonic() + timeout_s
        while (stats := self.node.engine.stats()).num_running or stats.num_waiting:
            assert time.monotonic() < deadline, stats
            time.sleep(0.005)


@contextlib.contextmanager
def running_app(
    workspace: Path,
    checkpoint: Path,
    engine: Any,
    codec: TextCodec,
    record: Callable[[Trace, Decision], None] | None = None,
) -> Iterator[App]:
    """Serve `engine` in a thread until the block ends."""
    settings = make_settings(workspace, checkpoint, max_context_tokens=CONTEXT)
    log = MemoryLog()
    node = build_node(settings, log, engine, codec)
    if record is not None:
        node = dataclasses.replace(node, recorder=Recorder(engine, codec, record))
    port = settings.serving.port
    server = Server(uvicorn.Config(create_app(node), port=port, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield App(f"http://127.0.0.1:{port}", KEY, node, log)
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        engine.close()
        node.spool.close()
        node.telemetry.shutdown()


@contextlib.contextmanager
def staged(workspace: Path, checkpoint: Path) -> Iterator[Stage]:
    """A scripted engine, served."""
    codec = TextCodec(checkpoint)
    stage: Stage

    def script(request: EngineRequest, index: int) -> Line:
        return stage.script(request, index)  # which tests replace

    engine = ScriptedEngine(codec, script)
    stage = Stage("", codec, engine)
    with running_app(workspace, checkpoint, engine, codec, stage.record) as app:
        stage.url = app.url
        yield stage
