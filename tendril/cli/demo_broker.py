"""The broker of `tendril demo --log kafka`: one from a package, below the demo's workspace."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tendril.cli.supervisor import CannotStart
from tendril.settings import Settings

RUN = "import sys; from noida_db.cli import main; sys.exit(main())"
START_S, STOP_S = 20.0, 10.0
NUM_PARTITIONS = 2
"""Of traces and feedback: enough to show that sessions are shared out."""


def check_broker() -> None:
    """Raises `CannotStart` where the package is missing, with the cure."""
    if importlib.util.find_spec("noida_db") is None:
        raise CannotStart(
            "the demo's broker is missing; install it (pip install 'tendril-rl[kafka-demo]'), or "
            'run make demo ARGS="--log kafka", which does'
        )


@contextmanager
def running_broker(settings: Settings) -> Iterator[None]:
    """The broker, if the settings name Kafka; it outlives all who read the log at the end."""
    if settings.log.kind != "kafka":
        yield
        return
    host, _, port = settings.log.kafka.servers[0].rpartition(":")
    command = [
        sys.executable, "-c", RUN, "start", "--data-dir", str(settings.path(Path("broker"))),
        "--host", host, "--only", "kafka", "--kafka-port", port,
    ]  # fmt: skip
    logs = settings.path(Path("logs"))
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "broker.log").open("ab") as output:
        # A session of its own: Ctrl-C ends the rest first; and the command starts a second program.
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        _wait_until_it_listens(process, host, int(port))
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(STOP_S)


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", host: str, port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise CannotStart(f"the broker does not listen on {host}:{port}; why is in logs/broker.log")
