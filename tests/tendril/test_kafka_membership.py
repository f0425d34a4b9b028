"""Static membership (KIP-345): a process with a lasting name restarts without a rebalance."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tendril.log import LeaseLost, LogReader, TopicPartition
from tendril.log.kafka import KafkaLog
from tendril.log.references import References
from tendril.settings import KafkaSettings
from tests.builders import make_trace
from tests.tendril.kafka_broker import broker_address, end_session, own_prefix

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]
SESSION_S = 6.0
WAIT_S = 40.0
Held = frozenset[TopicPartition]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with broker_address(tmp_path_factory.mktemp("broker")) as address:
        yield address


class Process(NamedTuple):
    """What one process has of the log."""

    log: KafkaLog
    reader: LogReader

    def stop(self) -> None:
        self.reader.close()
        self.log.close()


class Cluster:
    """Starts processes on topics of its own, and stops them in the end."""

    def __init__(self, server: str, folder: Path) -> None:
        self._folder = folder
        self._settings = KafkaSettings(
            servers=(server,), topic_prefix=own_prefix(), partitions=4, session_timeout_s=SESSION_S
        )
        self._started: list[Process] = []

    def start(self, member: str) -> Process:
        settings = self._settings.model_copy(update={"member": member})
        log = KafkaLog(settings, References(self._folder))
        self._started.append(Process(log, log.reader("g", ["traces", "feedback"])))
        return self._started[-1]

    def end_session(self, member: str) -> None:
        server, group = self._settings.servers[0], f"{self._settings.topic_prefix}g"
        end_session(server, group, f"{member}-g")

    def close(self) -> None:
        for process in self._started:
            process.stop()


@pytest.fixture
def cluster(server: str, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(server, tmp_path)
    yield made
    made.close()


def settle(*processes: Process, num_each: int) -> list[Held]:
    """What each holds once all have so many; all poll at once, as processes do."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        threads = [threading.Thread(target=p.reader.poll, args=(10, 0.5)) for p in processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = [process.reader.assignment() for process in processes]
        if [len(mine) for mine in held] == [num_each] * len(processes):
            return held
    raise AssertionError(f"expected {num_each} partitions each, got {held}")


def test_a_restart_within_the_session_moves_nothing_and_a_longer_absence_hands_over(
    cluster: Cluster,
) -> None:
    first, second = cluster.start("a"), cluster.start("b")
    of_a, of_b = settle(first, second, num_each=4)
    first.stop()
    until = time.monotonic() + SESSION_S / 3
    while time.monotonic() < until:
        second.reader.poll(10, 0.2)
        assert second.reader.assignment() == of_b  # nobody leaves before the session's end
    first = cluster.start("a")
    assert settle(first, second, num_each=4) == [of_a, of_b]
    first.stop()
    cluster.end_session("a")
    assert settle(second, num_each=8) == [of_a | of_b]


def test_of_two_processes_with_one_name_the_older_is_told(cluster: Cluster) -> None:
    older = cluster.start("a")
    older.log.append([("s", make_trace())])
    settle(older, num_each=8)
    newer = cluster.start("a")
    settle(newer, num_each=8)
    with pytest.raises(LeaseLost, match=r"another process has the same log\.kafka\.member"):
        _go_on(older.reader)


def _go_on(reader: LogReader) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        reader.poll(10, 0.5)
        reader.commit({TopicPartition("traces", 0): 0})
