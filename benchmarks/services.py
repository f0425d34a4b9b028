"""Processes to measure: a serving node, a gateway before it, and vLLM's own server."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import tomli_w

from serving.vllm_engine.launch import prepare_environment, vllm_arguments
from tendril.settings import Settings, load_settings

KEY = "sk-benchmark"
HEADERS = {"authorization": f"Bearer {KEY}"}
START_S, STOP_S = 180.0, 40.0
OURS_ALONE = ("--worker-extension-cls", "--weight-transfer-config", "--logprobs-mode")
"""What our engine adds to vLLM's arguments, each with a value."""


class Deployment(NamedTuple):
    """One workspace: a node, and a gateway for it."""

    folder: Path
    config: Path
    settings: Settings

    @property
    def node_url(self) -> str:
        return f"http://127.0.0.1:{self.settings.serving.port}"

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.settings.gateway.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.settings.serving.admin_port}"


def write_deployment(folder: Path, **serving: Any) -> Deployment:
    """Settings on free ports; `serving` goes over what is usual here."""
    folder.mkdir(parents=True)
    port, admin_port, gateway_port = free_ports(3)
    usual = {"port": port, "admin_port": admin_port, "api_keys": [KEY], "seed": 0}
    document = {
        "workspace": str(folder / "workspace"),
        "serving": usual | serving,
        "gateway": {"port": gateway_port},
    }
    config = folder / "tendril.toml"
    config.write_text(tomli_w.dumps(document))
    return Deployment(folder, config, load_settings(config))


def free_ports(num: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num)]
    ports: list[int] = [bound.getsockname()[1] for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports


@contextlib.contextmanager
def node(deployment: Deployment) -> Iterator[psutil.Process]:
    """The serving process, once it is ready."""
    with _service(deployment, "serve", deployment.node_url) as process:
        yield process


@contextlib.contextmanager
def gateway(deployment: Deployment) -> Iterator[psutil.Process]:
    """The gateway of that node, once it is ready."""
    with _service(deployment, "gateway", deployment.gateway_url) as process:
        yield process


@contextlib.contextmanager
def _service(deployment: Deployment, name: str, url: str) -> Iterator[psutil.Process]:
    command = [sys.executable, "-m", "tendril.cli", "--config", str(deployment.config), name]
    with running(command, f"{url}/ready", deployment.folder / f"{name}.log") as process:
        yield process


@contextlib.contextmanager
def bare_vllm(
    deployment: Deployment, folder: Path, *more: str, **environment: str
) -> Iterator[str]:
    """vLLM's own server on the checkpoint in `folder`, with our node's arguments; its URL."""
    ours = vllm_arguments(folder, deployment.settings.serving, on_cpu=True, silence=False)
    [port] = free_ports(1)
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", *bare_arguments(ours), *more,
        "--host", "127.0.0.1", "--port", str(port), "--api-key", KEY,
        "--disable-uvicorn-access-log",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    log = deployment.folder / f"vllm-{port}.log"
    with running(command, f"{url}/health", log, environment):
        yield url


def bare_arguments(ours: Sequence[str]) -> list[str]:
    """Without what only our engine needs; every such flag has a value after it."""
    kept, rest = [], iter(ours)
    for argument in rest:
        if argument in OURS_ALONE:
            next(rest)
        else:
            kept.append(argument)
    return kept


@contextlib.contextmanager
def running(
    command: Sequence[str], url: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[psutil.Process]:
    """A process that answers on `url`; it is stopped at the end, with what it has started."""
    prepare_environment()  # of this process, which the child inherits
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    family = [psutil.Process(child.pid)]
    try:
        _wait_until_it_answers(child, url, log)
        family += family[0].children(recursive=True)
        yield family[0]
    finally:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        child.wait()


def _wait_until_it_answers(child: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, headers=HEADERS, timeout=5).status_code == 200:
                return
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{url} does not answer; its log ends:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)


def rss_bytes(process: psutil.Process) -> dict[int, int]:
    """Resident memory of a process and of its children, by process id."""
    family = [process, *process.children(recursive=True)]
    return {member.pid: member.memory_info().rss for member in family}


def admin(deployment: Deployment, verb: str, **body: Any) -> dict[str, Any]:
    """What the node agent would ask; raises on a refusal."""
    url = f"{deployment.admin_url}/admin/{verb}"
    reply = httpx.post(url, json=body, timeout=300) if body else httpx.get(url, timeout=30)
    if reply.status_code != 200:
        raise RuntimeError(f"{verb}: {reply.status_code} {reply.text}")
    answer: dict[str, Any] = json.loads(reply.content)
    return answer
