"""What only a Kafka log does: shares partitions out, gets over its broker, sends by reference."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from signals.process import run
from tendril.lake import open_lake
from tendril.log import EventLog, LeaseLost, LogUnavailable, TopicPartition
from tendril.log.kafka import KafkaLog
from tendril.log.references import References
from tendril.records import DeadLetter, Episode, Feedback, Ledger, decode
from tendril.settings import KafkaSettings, LogSettings, Settings, SignalsSettings
from tests.builders import make_feedback, make_trace
from tests.tendril.kafka_broker import broker, broker_address, own_prefix

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]
NUM_SESSIONS = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with broker_address(tmp_path_factory.mktemp("broker")) as address:
        yield address


def settings_for(server: str, **overrides: Any) -> KafkaSettings:
    fields: dict[str, Any] = {
        "servers": (server,), "topic_prefix": own_prefix(), "partitions": 4,
        "session_timeout_s": 6, "request_timeout_s": 2,
    }  # fmt: skip
    return KafkaSettings(**(fields | overrides))


def make_log(folder: Path, settings: KafkaSettings) -> KafkaLog:
    return KafkaLog(settings, References(folder / "references"))


@pytest.fixture
def log(server: str, tmp_path: Path) -> Iterator[KafkaLog]:
    made = make_log(tmp_path, settings_for(server))
    yield made
    made.close()


def _read_all(log: EventLog, topic: str) -> list[Any]:
    reader = log.reader(None, [topic])
    rows = list(reader.poll(10_000, 1.0))
    while more := reader.poll(10_000, 0.0):
        rows += more
    reader.close()
    return rows


def test_a_sessions_traces_and_feedback_lie_in_partitions_of_one_number(log: KafkaLog):
    sessions = [f"s{i}" for i in range(NUM_SESSIONS)]
    log.append([(s, record) for s in sessions for record in (make_trace(), make_feedback())])
    rows = _read_all(log, "traces") + _read_all(log, "feedback")
    numbers = {s: {row.partition for row in rows if row.key == s} for s in sessions}
    assert all(len(found) == 1 for found in numbers.values())
    assert set().union(*numbers.values()) == {0, 1, 2, 3}


def test_partitions_are_those_of_every_kafka_client(server: str, tmp_path: Path):
    """murmur2 of the key, as in Java's client: 21 -> -973932308, by its own test vectors."""
    made = make_log(tmp_path, settings_for(server, partitions=7))
    made.append([("21", make_feedback())])
    [row] = _read_all(made, "feedback")
    made.close()
    assert row.partition == (-973932308 & 0x7FFFFFFF) % 7


def test_two_members_share_and_a_rebalance_moves_what_one_leaves(log: KafkaLog):
    first, second = (log.reader("g", ["traces", "feedback"]) for _ in range(2))
    held: list[frozenset[TopicPartition]] = [frozenset(), frozenset()]
    deadline = time.monotonic() + 40
    while sorted(map(len, held)) != [4, 4] and time.monotonic() < deadline:
        threads = [threading.Thread(target=r.poll, args=(10, 0.5)) for r in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = [first.assignment(), second.assignment()]
    assert sorted(map(len, held)) == [4, 4]
    assert not held[0] & held[1]
    for mine in held:  # what belongs together stays together
        assert {p.partition for p in mine if p.topic == "traces"} == {
            p.partition for p in mine if p.topic == "feedback"
        }
    lost = dict.fromkeys(held[0], 0)
    with pytest.raises(LeaseLost):
        second.commit(lost)
    first.close()
    while len(second.assignment()) < 8 and time.monotonic() < deadline:
        second.poll(10, 0.5)
    assert len(second.assignment()) == 8
    second.close()


def test_a_record_over_the_limit_travels_by_reference(server: str, tmp_path: Path):
    made = make_log(tmp_path, settings_for(server, max_record_bytes=2_000))
    letter = DeadLetter(topic="traces", reason="", value=bytes(50_000), at=0.0)
    made.append([("k", letter)])
    [row] = _read_all(made, "dead_letters")
    made.close()
    assert decode(DeadLetter, row.value) == letter
    assert sum(p.stat().st_size for p in (tmp_path / "references").rglob("*")) > 50_000


def test_topics_that_have_other_partitions_are_explained(server: str, tmp_path: Path):
    settings = settings_for(server)
    make_log(tmp_path, settings).append([("s", make_trace())])
    other = make_log(tmp_path, settings.model_copy(update={"partitions": 2}))
    with pytest.raises(LogUnavailable, match="expected 2 partitions, found 4"):
        other.append([("s", make_trace())])


def test_without_a_broker_the_log_says_what_to_do_and_comes_back_with_it(tmp_path: Path):
    with broker(tmp_path / "broker") as own:
        made = make_log(tmp_path, settings_for(own.server))
        made.append([("s1", make_feedback(client_seq=1))])
        reader = made.reader("g", ["feedback"])
        assert len(reader.poll(10, 5.0)) == 1
        time.sleep(1.0)  # this broker writes its file now and then
        own.stop(signal.SIGKILL)
        with pytest.raises(LogUnavailable, match=r"log\.kafka\.servers"):
            made.append([("s1", make_feedback(client_seq=2))])
        own.start()
        deadline = time.monotonic() + 40
        while True:
            try:
                made.append([("s1", make_feedback(client_seq=3))])
                break
            except LogUnavailable:
                assert time.monotonic() < deadline
        found: list[int] = []
        while 3 not in found and time.monotonic() < deadline:
            try:
                rows = reader.poll(10, 0.5)
            except (LogUnavailable, LeaseLost):
                continue
            found += [decode(Feedback, row.value).client_seq for row in rows]
        assert 3 in found
        reader.close()
        made.close()


def test_the_signals_process_joins_over_kafka(server: str, tmp_path: Path):
    kafka = settings_for(server, partitions=3)
    settings = Settings(
        workspace=tmp_path,
        log=LogSettings(kind="kafka", kafka=kafka),
        signals=SignalsSettings(feedback_window_s=1.0, revise_after_s=(), lateness_s=0.0),
    )
    log = make_log(tmp_path, kafka)
    names = [(f"s{i}", f"t{i}") for i in range(NUM_SESSIONS)]
    log.append([(s, make_trace(trace_id=t, session_id=s)) for s, t in names])
    log.append([(s, make_feedback(trace_id=t, session_id=s, event_id=t)) for s, t in names])
    stop = threading.Event()
    process = threading.Thread(target=run, args=(settings, stop))
    process.start()
    deadline = time.monotonic() + 60
    episodes: set[str] = set()
    while len(episodes) < NUM_SESSIONS and time.monotonic() < deadline:
        rows = _read_all(log, "episodes")
        episodes = {decode(Episode, row.value).segments[0].trace_id for row in rows}
    stop.set()
    process.join(30)
    assert episodes == {t for _, t in names}
    ledgers = [decode(Ledger, row.value) for row in _read_all(log, "ledgers")]
    last = {ledger.node: ledger for ledger in ledgers}
    assert all(ledger.balanced for ledger in last.values())
    assert sum(ledger.outcomes["feedback"]["joined"] for ledger in last.values()) == NUM_SESSIONS
    assert open_lake(settings).read("episodes").num_rows == NUM_SESSIONS
    log.close()
