"""vLLM's process dies: clients hear of it at once, traces are kept, and the node's process ends."""

import asyncio
import contextlib
import multiprocessing
import signal
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import psutil
import pytest

from serving.process import run
from tendril.records import Trace
from tendril.settings import Settings
from tests.serving.live_server import KEY, LiveServer, make_settings
from tests.serving.vllm_engine.shared import FAULTY, IS_INSTALLED

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]
NUM_TOKENS = 900


def serve(settings: Settings) -> None:
    run(settings, threading.Event())


def wait_up(server: LiveServer, process: BaseProcess, patience_s: float = 150) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        assert process.exitcode is None, process.exitcode
        assert time.monotonic() < deadline
        with contextlib.suppress(httpx.TransportError):
            server.admin.get("/admin/status")
            server.http.get("/health")
            return
        time.sleep(0.05)


async def ask(client: httpx.AsyncClient, *, stream: bool) -> str:
    """How a long request ended, in words."""
    body = {"model": "tendril", "prompt": "def a", "max_tokens": NUM_TOKENS, "stream": stream,
            "ignore_eos": True}  # fmt: skip
    try:
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            text = (await reply.aread()).decode()
    except httpx.TransportError:
        return "closed"
    if '"error"' in text:
        return "error"
    return "complete" if "[DONE]" in text or reply.status_code == 200 else f"{reply.status_code}"


async def kill_while_sampling(server: LiveServer, engine: int, second: Path) -> list[str]:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
        asking = [asyncio.create_task(ask(client, stream=i % 2 == 0)) for i in range(8)]
        await asyncio.sleep(0.6)
        body = {"policy_version": 2, "folder": str(second)}
        async with httpx.AsyncClient(base_url=server.admin.base_url, timeout=60) as admin:
            await admin.post("/admin/stage", json=body)
            swapping = asyncio.create_task(admin.post("/admin/swap", json=body))
            await asyncio.sleep(0.01)
            psutil.Process(engine).send_signal(signal.SIGKILL)
            killed_at = time.monotonic()
            ends = await asyncio.gather(*asking)
            await asyncio.gather(swapping, return_exceptions=True)
    assert time.monotonic() - killed_at < 15  # a request would wait for a minute
    return ends


def test_a_killed_engine_ends_requests_and_the_process(
    checkpoints: list[Path], tmp_path: Path
) -> None:
    if not IS_INSTALLED:
        pytest.skip("vLLM is not installed")
    settings = make_settings(
        tmp_path, checkpoints[0], engine="vllm", vllm_args=FAULTY, max_context_tokens=1_000
    )
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(settings,))
    process.start()
    server = LiveServer(settings)
    try:
        wait_up(server, process)
        family = psutil.Process(process.pid).children(recursive=True)
        [engine] = [child.pid for child in family if "EngineCore" in child.name()]
        ends = asyncio.run(kill_while_sampling(server, engine, checkpoints[1]))
        process.join(timeout=30)
        assert process.exitcode == 1  # so that whoever started it starts it again
    finally:
        process.kill()
        process.join()
        server.http.close()
        server.admin.close()
    assert set(ends) <= {"error", "closed"}, ends
    traces = server.records(Trace)
    assert len(traces) == len(ends)
    assert all(0 < len(trace.completion_token_ids) < NUM_TOKENS for trace in traces)
    assert {trace.finish_reason for trace in traces} == {"error"}
