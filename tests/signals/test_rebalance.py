"""Two extractors share the partitions of a log; one is killed while records flow."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from signals.process import GROUP
from tendril.lake import open_lake
from tendril.log import EventLog, open_log, read_all
from tendril.records import Episode, Ledger, Trace, decode
from tendril.settings import KafkaSettings, LakeSettings, LogSettings, Settings, SignalsSettings
from tests.builders import make_feedback, make_trace
from tests.tendril.kafka_broker import broker_address, end_session, own_prefix

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
NUM_PARTITIONS, NUM_SESSIONS = 4, 60
EVERY_S, WAIT_S = 0.02, 60.0


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def log_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogSettings]:
    if request.param == "sqlite":
        yield LogSettings(partitions=NUM_PARTITIONS)
        return
    with broker_address(tmp_path / "broker") as server:
        kafka = KafkaSettings(
            servers=(server,), topic_prefix=own_prefix(), partitions=NUM_PARTITIONS,
            session_timeout_s=6,
        )  # fmt: skip
        yield LogSettings(kind="kafka", kafka=kafka)


@pytest.fixture
def settings(log_settings: LogSettings, tmp_path: Path) -> Settings:
    return Settings(
        workspace=tmp_path,
        log=log_settings,
        signals=SignalsSettings(
            feedback_window_s=1.0, revise_after_s=(), lateness_s=0.0, batch_records=20
        ),
        lake=LakeSettings(commit_interval_s=0.1),
    )


class Extractor:
    """A signals process of its own, under a lasting name."""

    def __init__(self, settings: Settings, name: str) -> None:
        kafka = settings.log.kafka.model_copy(update={"member": name})
        log = settings.log.model_copy(update={"kafka": kafka})
        file = settings.workspace / f"{name}.json"
        file.write_text(settings.model_copy(update={"log": log}).model_dump_json())
        self.held: list[list[int]] = [[]]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.signals.extractor_target", str(file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.held.append([int(number) for number in line.split()])

    def kill(self) -> None:
        self._process.kill()
        self.stop()

    def stop(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._process.wait(30)
        self._listener.join()
        return status


@pytest.fixture
def extractors(settings: Settings) -> Iterator[tuple[Extractor, Extractor]]:
    """Two, which do not outlive the test."""
    made = Extractor(settings, "first"), Extractor(settings, "second")
    yield made
    for extractor in made:
        extractor.kill()


class Traffic:
    """A trace with its feedback every few milliseconds, until it is stopped."""

    def __init__(self, log: EventLog) -> None:
        self._log, self._stop = log, threading.Event()
        self.trace_ids: list[str] = []
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._stop.wait(EVERY_S):
            number = len(self.trace_ids)
            about = {"trace_id": f"t{number}", "session_id": f"s{number % NUM_SESSIONS}"}
            event = make_feedback(event_id=f"e{number}", **about)
            key = about["session_id"]
            self._log.append([(key, make_trace(**about)), (key, event)])
            self.trace_ids.append(about["trace_id"])

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join()
        return self.trace_ids


@pytest.fixture
def log(settings: Settings) -> Iterator[EventLog]:
    made = open_log(settings)
    yield made
    made.close()


@pytest.fixture
def traffic(log: EventLog) -> Iterator[Traffic]:
    made = Traffic(log)
    yield made
    made.stop()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {what}"
        time.sleep(0.1)


def episodes_by_trace(log: EventLog) -> dict[str, set[str]]:
    """The ids of each trace's episodes on the log, where a repeat keeps its id."""
    found: dict[str, set[str]] = {}
    for record in read_all(log, [Episode.TOPIC]):
        episode = decode(Episode, record.value)
        found.setdefault(episode.segments[0].trace_id, set()).add(episode.episode_id)
    return found


def test_one_of_two_extractors_dies_while_records_flow_and_nothing_is_lost_or_doubled(
    settings: Settings, log: EventLog, traffic: Traffic, extractors: tuple[Extractor, Extractor]
) -> None:
    first, second = extractors
    wait_until(lambda: len(first.held[-1]) == len(second.held[-1]) == 2, "two partitions each")
    half = len(traffic.trace_ids)
    wait_until(lambda: len(traffic.trace_ids) > half + 150, "both at work")
    assert sorted(first.held[-1] + second.held[-1]) == [*range(NUM_PARTITIONS)]
    first.kill()
    if settings.log.kind == "kafka":
        group = f"{settings.log.kafka.topic_prefix}{GROUP}"
        end_session(settings.log.kafka.servers[0], group, f"first-{GROUP}")
    wait_until(lambda: len(second.held[-1]) == NUM_PARTITIONS, "all partitions on the survivor")
    taken = len(traffic.trace_ids)
    wait_until(lambda: len(traffic.trace_ids) > taken + 150, "the survivor at work")
    sent = traffic.stop()
    wait_until(lambda: len(episodes_by_trace(log)) >= len(sent), "an episode for each trace")
    assert second.stop() == 0
    episodes = episodes_by_trace(log)
    assert episodes.keys() == set(sent)
    assert {len(ids) for ids in episodes.values()} == {1}
    _check_lake_and_ledgers(settings, log, sent)


def _check_lake_and_ledgers(settings: Settings, log: EventLog, sent: list[str]) -> None:
    lake = open_lake(settings)
    traces = Counter(lake.read(Trace.TOPIC).column("trace_id").to_pylist())
    assert traces == Counter(sent)
    assert lake.read(Episode.TOPIC).num_rows == len(sent)
    written = [decode(Ledger, record.value) for record in read_all(log, [Ledger.TOPIC])]
    ledgers = {ledger.node: ledger for ledger in written}
    assert len(ledgers) == NUM_PARTITIONS
    assert all(ledger.balanced for ledger in ledgers.values())
    for kind in ("traces", "feedback"):
        assert sum(ledger.outcomes[kind]["joined"] for ledger in ledgers.values()) == len(sent)
