"""The gateway before a stub upstream that answers at once: requests a second of one core.

The proxy has a core of its own; stub and load share another, so that what counts is requests a
second of the proxy's CPU time. Peers, on the same stub with the same load: a reverse proxy of
Starlette and httpx without keys, quotas or routing, and the LiteLLM proxy (with a master key) where
LITELLM names its command in another environment.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httptools
import httpx
import msgspec
import psutil
import tomli_w
import uvloop

from benchmarks.figures import Figure
from benchmarks.services import free_ports

KEY = "sk-benchmark"
NUM_CONNECTIONS = 32
NUM_ROUNDS, ROUND_S, WARM_UP_S = 3, 3.0, 1.0
START_S = 90.0
TARGET_PER_S = 1_500
CHAT = "/v1/chat/completions"
REQUEST = {
    "model": "stub", "user": "u1", "max_tokens": 16,
    "messages": [{"role": "user", "content": "Say hello to the benchmark. " * 20}],
}  # fmt: skip
REPLY = msgspec.json.encode(
    {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "stub",
        "choices": [
            {
                "index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Hello, benchmark. " * 10},
            }
        ],
        "usage": {"prompt_tokens": 120, "completion_tokens": 40, "total_tokens": 160},
    }
)  # fmt: skip
HEALTH = b'{"status":"ok","policy_version":1,"num_running":0,"num_waiting":0,"draining":false}'


class Speed(NamedTuple):
    """What one proxy reached."""

    per_cpu_s: float
    per_s: float


def run() -> list[Figure]:
    """Half a minute, and as much again with LiteLLM."""
    with tempfile.TemporaryDirectory() as name:
        folder, (stub, ours_at, bare_at, litellm_at) = Path(name), free_ports(4)
        with _child(_role("stub", stub), core=0):
            _wait_until_it_answers(stub)
            direct = _load(stub, ROUND_S) / ROUND_S
            ours = _measure(_gateway_command(folder, stub, ours_at), ours_at)
            peers = {"Starlette + httpx": _measure(_role("bare", bare_at, stub), bare_at)}
            if command := os.environ.get("LITELLM"):
                litellm = _litellm_command(command, folder, stub, litellm_at)
                peers["LiteLLM proxy"] = _measure(litellm, litellm_at)
            else:
                print("LITELLM is not set to the command of a LiteLLM proxy: no figure for it")
    return [
        *(_figure(ours, peer, name) for name, peer in peers.items()),
        *(_wall(ours, peer, name) for name, peer in peers.items()),
        Figure(metric="requests a second, stub without a proxy", unit="1/s", ours=direct),
    ]


def _figure(ours: Speed, peer: Speed, peer_name: str) -> Figure:
    return Figure(
        metric="requests a CPU second of the proxy", unit="1/s", ours=ours.per_cpu_s,
        peer=peer.per_cpu_s, peer_name=peer_name, ratio=ours.per_cpu_s / peer.per_cpu_s,
        target=TARGET_PER_S, ok=ours.per_cpu_s >= TARGET_PER_S,
    )  # fmt: skip


def _wall(ours: Speed, peer: Speed, peer_name: str) -> Figure:
    return Figure(
        metric=f"requests a second, {NUM_CONNECTIONS} connections", unit="1/s", ours=ours.per_s,
        peer=peer.per_s, peer_name=peer_name, ratio=ours.per_s / peer.per_s,
    )  # fmt: skip


def _measure(command: Sequence[str], port: int) -> Speed:
    """The best of some rounds: other jobs on the machine only ever slow one down."""
    with _child(command, core=1) as process:
        _wait_until_it_answers(port)
        _load(port, WARM_UP_S)
        rounds = []
        for _ in range(NUM_ROUNDS):
            before_s = _cpu_s(process)
            num_replies = _load(port, ROUND_S)
            used_s = _cpu_s(process) - before_s
            rounds.append(Speed(num_replies / used_s, num_replies / ROUND_S))
    return max(rounds)


def _load(port: int, duration_s: float) -> int:
    """Replies got in that time, by a process beside the stub; anything but 200 raises there."""
    with _child(_role("load", port, duration_s), core=0, stdout=subprocess.PIPE) as process:
        output, _ = process.communicate(timeout=duration_s + 30)
    if process.returncode != 0:
        raise RuntimeError(f"the load on port {port} ended with {process.returncode}")
    return int(output)


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    """Of the process and its children."""
    parent = psutil.Process(process.pid)
    used = [p.cpu_times() for p in (parent, *parent.children(recursive=True))]
    return sum(times.user + times.system for times in used)


def _wait_until_it_answers(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            headers = {"authorization": f"Bearer {KEY}"}
            url = f"http://127.0.0.1:{port}{CHAT}"
            httpx.post(url, json=REQUEST, headers=headers, timeout=5).raise_for_status()
            return
        except httpx.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@contextmanager
def _child(
    command: Sequence[str], *, core: int, stdout: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    process = subprocess.Popen(command, stdout=stdout, env=environment)
    try:
        if hasattr(os, "sched_setaffinity"):  # not on macOS, which has no pinning
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(process.pid, {cores[core % len(cores)]})
        yield process
    finally:
        process.terminate()
        process.wait(30)


def _role(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gateway_proxy", name, *map(str, arguments)]


def _gateway_command(folder: Path, stub_port: int, port: int) -> list[str]:
    config = folder / "tendril.toml"
    gateway = {"port": port, "replicas": [{"url": f"http://127.0.0.1:{stub_port}"}]}
    document = {
        "workspace": str(folder / "workspace"),
        "serving": {"api_keys": [KEY]},
        "gateway": {**gateway, "default_requests_per_minute": 10_000_000},
    }
    config.write_text(tomli_w.dumps(document))
    return [sys.executable, "-m", "tendril.cli", "--config", str(config), "gateway"]


def _litellm_command(command: str, folder: Path, stub_port: int, port: int) -> list[str]:
    """JSON is YAML."""
    upstream = f"http://127.0.0.1:{stub_port}/v1"
    parameters = {"model": "openai/stub", "api_base": upstream, "api_key": "x"}
    config = {
        "model_list": [{"model_name": "stub", "litellm_params": parameters}],
        "general_settings": {"master_key": KEY},
    }
    path = folder / "litellm.yaml"
    path.write_bytes(msgspec.json.encode(config))
    return [command, "--config", str(path), "--host", "127.0.0.1", "--port", str(port)]


class StubUpstream(asyncio.Protocol):
    """Answers every request at once."""

    _target = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._target = url

    def on_message_complete(self) -> None:
        body = HEALTH if self._target in (b"/health", b"/ready") else REPLY
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body)


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it has its reply."""

    num_replies = 0

    def __init__(self, request: bytes) -> None:
        self._request = request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            os._exit(1)  # from a callback of the parser nothing else ends the process
        self.num_replies += 1
        asyncio.get_running_loop().call_soon(self._ask)


async def _serve_stub(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(StubUpstream, "127.0.0.1", port)
    await server.serve_forever()


async def _ask_for(port: int, duration_s: float) -> int:
    body = msgspec.json.encode(REQUEST)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    clients = [Client(head.encode() + body) for _ in range(NUM_CONNECTIONS)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.sleep(duration_s)
    return sum(client.num_replies for client in clients)


def _serve_bare(port: int, stub_port: int) -> None:
    """The peer: the least that a streaming reverse proxy of these two libraries does."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{stub_port}", limits=limits)

    async def forward(request: Request) -> StreamingResponse:
        headers = [(name, value) for name, value in request.headers.raw if name != b"host"]
        content = await request.body()
        path = request.url.path
        sent = client.build_request(request.method, path, headers=headers, content=content)
        reply = await client.send(sent, stream=True)
        done = BackgroundTask(reply.aclose)
        return StreamingResponse(
            reply.aiter_raw(), reply.status_code, reply.headers, background=done
        )

    app = Starlette(routes=[Route("/{path:path}", forward, methods=["POST"])])
    uvicorn.run(app, port=port, access_log=False, log_level="warning", proxy_headers=False)


def main(role: str, *arguments: str) -> None:
    """The benchmark's own processes."""
    if role == "bare":
        _serve_bare(int(arguments[0]), int(arguments[1]))
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if role == "stub":
            runner.run(_serve_stub(int(arguments[0])))
        else:
            print(runner.run(_ask_for(int(arguments[0]), float(arguments[1]))))


if __name__ == "__main__":
    main(*sys.argv[1:])
