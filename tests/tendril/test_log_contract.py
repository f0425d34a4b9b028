"""What every event log promises, on each of them."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tendril.log import EventLog, LeaseLost, LogReader, MemoryLog, SqliteLog, TopicPartition
from tendril.records import DeadLetter, Feedback, Record, decode
from tendril.settings import KafkaSettings
from tests.builders import make_feedback, make_release, make_trace
from tests.tendril.kafka_broker import broker_address, own_prefix

MakeReader = Callable[..., LogReader]
LookNow = Callable[[LogReader], LogReader]
FEEDBACK, TRACES = TopicPartition("feedback", 0), TopicPartition("traces", 0)
MAKERS: dict[str, Callable[[Path, str], EventLog]] = {
    "memory": lambda _, __: MemoryLog(),
    "sqlite": lambda folder, _: SqliteLog(folder / "log.db"),
}
KINDS = [
    "memory",
    "sqlite",
    pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.timeout(60)]),
]


on_one_machine = pytest.mark.parametrize("log", ["memory", "sqlite"], indirect=True)
"""A lease is one holder's until it closes; members of a Kafka group share again when one joins:
tests/tendril/test_kafka_log.py."""


def make_kafka_log(folder: Path, server: str) -> EventLog:
    """One partition a topic, as the embedded logs have, under names of its own."""
    from tendril.log.kafka import KafkaLog
    from tendril.log.references import References

    settings = KafkaSettings(
        servers=(server,), topic_prefix=own_prefix(), partitions=1, session_timeout_s=6
    )
    return KafkaLog(settings, References(folder / "references"))


@pytest.fixture(scope="module")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with broker_address(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture(params=KINDS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventLog]:
    server = request.getfixturevalue("kafka_server") if request.param == "kafka" else ""
    make = MAKERS.get(request.param, make_kafka_log)
    made = make(tmp_path, server)
    yield made
    made.close()


@pytest.fixture
def read(log: EventLog) -> Iterator[MakeReader]:
    """Makes readers that are closed in the end."""
    made: list[LogReader] = []

    def make(group: str = "g", topics: tuple[str, ...] = ("feedback",)) -> LogReader:
        made.append(log.reader(group, topics))
        return made[-1]

    yield make
    for reader in made:
        reader.close()


def _append(log: EventLog, *numbers: int, key: str = "s1") -> None:
    log.append([(key, make_feedback(client_seq=n)) for n in numbers])


def _numbers(reader: LogReader, max_records: int = 100) -> list[int]:
    return [decode(Feedback, row.value).client_seq for row in reader.poll(max_records, 0.0)]


def test_records_come_back_in_order_with_their_key_topic_and_offset(
    log: EventLog, read: MakeReader
) -> None:
    log.append([("s1", make_feedback(client_seq=1)), ("s2", make_feedback(client_seq=2))])
    _append(log, 3)
    rows = read().poll(100, 0.0)
    assert [(row.topic, row.partition, row.offset, row.key) for row in rows] == [
        ("feedback", 0, 0, "s1"), ("feedback", 0, 1, "s2"), ("feedback", 0, 2, "s1"),
    ]  # fmt: skip
    assert [decode(Feedback, row.value).client_seq for row in rows] == [1, 2, 3]
    assert all(row.appended_at > 1e9 for row in rows)


def test_a_poll_takes_at_most_what_was_asked_and_goes_on_from_there(
    log: EventLog, read: MakeReader
) -> None:
    _append(log, *range(5))
    reader = read()
    assert [_numbers(reader, 2) for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_several_topics_are_read_by_one_reader(log: EventLog, read: MakeReader) -> None:
    log.append([("s1", make_trace()), ("s1", make_feedback()), ("s1", make_trace())])
    reader = read(topics=("feedback", "traces"))
    rows = [*reader.poll(2, 0.0), *reader.poll(2, 0.0)]
    assert sorted((row.topic, row.offset) for row in rows) == [
        ("feedback", 0), ("traces", 0), ("traces", 1),
    ]  # fmt: skip
    assert reader.assignment() == {FEEDBACK, TRACES}
    assert reader.positions() == log.end_offsets(["feedback", "traces"])


def test_an_append_that_fails_leaves_nothing(log: EventLog, read: MakeReader) -> None:
    unwritable = make_feedback(client_seq=2**70)  # msgpack holds 64 bits
    with pytest.raises(OverflowError):
        log.append([("s1", make_feedback()), ("s1", unwritable)])
    assert log.end_offsets(["feedback"]) == {FEEDBACK: 0}
    _append(log, 7)
    assert _numbers(read()) == [7]


def test_an_append_of_nothing_is_nothing(log: EventLog) -> None:
    log.append([])
    assert log.end_offsets(["feedback", "traces"]) == {FEEDBACK: 0, TRACES: 0}


def test_a_reader_that_closes_before_its_commit_sees_the_records_again(
    log: EventLog, read: MakeReader
) -> None:
    _append(log, 1, 2)
    first = read()
    assert _numbers(first) == [1, 2]
    first.close()
    assert _numbers(read()) == [1, 2]


def test_a_new_reader_goes_on_at_the_committed_offsets(log: EventLog, read: MakeReader) -> None:
    _append(log, 1, 2, 3)
    first = read()
    assert first.committed() == {}
    first.poll(100, 0.0)
    first.commit({FEEDBACK: 2})
    first.close()
    second = read()
    assert second.committed() == {FEEDBACK: 2}
    assert _numbers(second) == [3]


def test_seek_goes_back_and_forward_whatever_was_committed(log: EventLog, read: MakeReader) -> None:
    _append(log, *range(4))
    reader = read()
    reader.seek({FEEDBACK: 3})
    assert _numbers(reader) == [3]
    reader.commit({FEEDBACK: 4})
    reader.seek({FEEDBACK: 1})
    assert _numbers(reader) == [1, 2, 3]
    assert reader.committed() == {FEEDBACK: 4}


def test_two_groups_read_independently(log: EventLog, read: MakeReader) -> None:
    _append(log, 1, 2)
    one, other = read("one"), read("other")
    assert _numbers(one) == [1, 2]
    one.commit({FEEDBACK: 2})
    assert _numbers(other) == [1, 2]
    assert other.committed() == {}


@on_one_machine
def test_a_second_reader_of_a_group_stands_by_until_the_first_closes(
    log: EventLog, read: MakeReader, impatient: LookNow
) -> None:
    _append(log, 1, 2, 3)
    first, second = read(), read()
    assert _numbers(first, 2) == [1, 2]
    assert _numbers(second) == []
    first.commit({FEEDBACK: 1})
    first.close()
    assert _numbers(impatient(second)) == [2, 3]


def test_a_stand_by_that_sought_starts_there_when_it_takes_over(
    log: EventLog, read: MakeReader, impatient: LookNow
) -> None:
    _append(log, *range(5))
    first, second = read(), read()
    assert len(_numbers(first)) == 5
    second.seek({FEEDBACK: 3})
    assert _numbers(second) == []
    first.close()
    assert _numbers(impatient(second)) == [3, 4]


def test_a_commit_by_who_does_not_hold_the_topic_is_refused(
    log: EventLog, read: MakeReader
) -> None:
    _append(log, 1)
    first, second = read(), read()
    assert _numbers(first) == [1]
    assert _numbers(second) == []
    with pytest.raises(LeaseLost, match="group g: feedback has another reader"):
        second.commit({FEEDBACK: 1})
    assert first.committed() == {}


@on_one_machine
def test_a_refused_commit_commits_nothing_of_it(log: EventLog, read: MakeReader) -> None:
    log.append([("s1", make_feedback()), ("s1", make_trace())])
    holder = read(topics=("traces",))
    both = read(topics=("feedback", "traces"))
    assert len(holder.poll(9, 0.0)) == len(both.poll(9, 0.0)) == 1
    with pytest.raises(LeaseLost):
        both.commit({FEEDBACK: 1, TRACES: 1})
    assert both.committed() == {}


@pytest.fixture
def impatient() -> LookNow:
    """Lets a stand-by look at the lease now, not at its next interval."""

    def look_now(reader: Any) -> LogReader:
        if hasattr(reader, "_lease_checked_at"):
            reader._lease_checked_at = 0.0
        return cast(LogReader, reader)

    return look_now


def test_an_empty_poll_waits_for_its_timeout(log: EventLog, read: MakeReader) -> None:
    reader, waited = read(), threading.Event()
    timer = threading.Timer(0.1, waited.set)
    timer.start()
    assert list(reader.poll(10, 0.3)) == []
    assert waited.is_set()
    timer.join()


def test_a_poll_that_waits_returns_as_soon_as_something_comes(
    log: EventLog, read: MakeReader
) -> None:
    reader = read()
    timer = threading.Timer(0.1, lambda: _append(log, 9))
    timer.start()
    assert [row.offset for row in reader.poll(10, 30.0)] == [0]
    timer.join()


def test_big_values_and_any_text_as_key_go_through(log: EventLog, read: MakeReader) -> None:
    big = bytes(range(256)) * 4096
    letter = DeadLetter(topic="traces", reason="", value=big, at=0.0)
    keys = ["", "Zoë 用户 🦊", "a'; DROP TABLE records; --", "k" * 10_000]
    log.append([(key, letter) for key in keys])
    rows = read(topics=("dead_letters",)).poll(10, 0.0)
    assert [row.key for row in rows] == keys
    assert decode(DeadLetter, rows[1].value).value == big


def test_end_offsets_count_what_was_appended(log: EventLog) -> None:
    _append(log, 1, 2)
    log.append([("r", make_release())])
    ends = log.end_offsets(["feedback", "releases", "traces"])
    assert {place.topic: n for place, n in ends.items()} == {
        "feedback": 2, "releases": 1, "traces": 0,
    }  # fmt: skip


def test_threads_append_at_once_and_each_key_keeps_its_order(
    log: EventLog, read: MakeReader
) -> None:
    def work(name: str) -> None:
        for n in range(0, 60, 3):
            _append(log, n, n + 1, n + 2, key=name)

    threads = [threading.Thread(target=work, args=(f"s{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = read().poll(1_000, 0.0)
    assert [row.offset for row in rows] == list(range(240))
    for i in range(4):
        mine = [row for row in rows if row.key == f"s{i}"]
        assert [decode(Feedback, row.value).client_seq for row in mine] == list(range(60))


def test_any_record_can_be_appended_under_its_own_topic(log: EventLog, read: MakeReader) -> None:
    records: list[Record] = [make_trace(), make_feedback(), make_release()]
    log.append([("k", record) for record in records])
    for record in records:
        [row] = read(record.TOPIC, (record.TOPIC,)).poll(10, 0.0)
        assert decode(type(record), row.value) == record
