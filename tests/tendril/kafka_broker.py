"""A broker that speaks Kafka's protocol: that of TENDRIL_TEST_KAFKA, else one from PyPI.

On a named broker each run has topics of its own, which it deletes in the end.
"""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

NAMED = "TENDRIL_TEST_KAFKA"
START_S = 20.0
RUN = f"tendril-test-{os.getpid()}-{time.time_ns()}-"
"""What the names of all topics and groups of this process begin with."""
_numbers = itertools.count()


def own_prefix() -> str:
    """A new `log.kafka.topic_prefix`."""
    return f"{RUN}{next(_numbers)}-"


def delete_topics(server: str, prefix: str) -> list[str]:
    """Delete every topic and group whose name begins with `prefix`; the topics' names."""
    from kafka import KafkaAdminClient  # here, so that tests without Kafka need no kafka-python

    admin = KafkaAdminClient(bootstrap_servers=[server], request_timeout_ms=10_000)
    try:
        topics = [name for name in admin.list_topics() if name.startswith(prefix)]
        if topics:
            admin.delete_topics(topics)
            deadline = time.monotonic() + START_S  # Apache Kafka deletes a little later
            while set(topics) & set(admin.list_topics()) and time.monotonic() < deadline:
                time.sleep(0.1)
        groups = [g["group_id"] for g in admin.list_groups() if g["group_id"].startswith(prefix)]
        if groups:
            admin.delete_groups(groups)
    finally:
        admin.close()
    return topics


def end_session(server: str, group: str, member: str) -> None:
    """Let a dead member go, as brokers do by themselves at its session's end.

    The broker from PyPI (noida-db 0.2.3) keeps dead members for ever; a named one is left alone.
    """
    if NAMED in os.environ:
        return
    from kafka import KafkaAdminClient
    from kafka.admin import MemberToRemove

    admin = KafkaAdminClient(bootstrap_servers=[server])
    try:
        admin.remove_group_members(group, [MemberToRemove(group_instance_id=member)])
    finally:
        admin.close()


class Broker:
    """A broker process on a port of its own that can be killed and started again."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it and wait until it listens."""
        beside = str(Path(sys.executable).parent)
        command = shutil.which("noida-db", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
        assert command, "noida-db is missing: make install brings it"
        self._process = subprocess.Popen(
            [command, "start", "--data-dir", str(self._folder), "--host", "127.0.0.1",
             "--only", "kafka", "--kafka-port", str(self._port)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # the command only starts the broker's own program
        )  # fmt: skip
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), timeout=1),
            ):
                return
            time.sleep(0.02)
        raise AssertionError("the broker does not listen")

    def stop(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """End it as `sig` does."""
        assert self._process is not None
        os.killpg(self._process.pid, sig)
        self._process.wait(20)


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[Broker]:
    """One of our own, running."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
    made = Broker(folder, port)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def broker_address(folder: Path) -> Iterator[str]:
    """The named broker's `host:port`, or that of one of our own."""
    if named := os.environ.get(NAMED):
        try:
            yield named
        finally:
            delete_topics(named, RUN)
        return
    with broker(folder) as made:
        yield made.server
