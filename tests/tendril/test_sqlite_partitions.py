"""Partitions of the embedded log: who of a group reads which, and what a file remembers."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tendril.log import LeaseLost, LogReader, SqliteLog, TopicPartition
from tendril.log.sqlite_group import LEASE_S
from tendril.records import Feedback, Trace, decode
from tendril.settings import InvalidSettings
from tests.builders import make_feedback, make_trace

PROJECT = Path(__file__).parents[2]
TOPICS = (Trace.TOPIC, Feedback.TOPIC)
NUM_PARTITIONS, NUM_SESSIONS = 4, 40
MakeReader = Callable[[], LogReader]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    made = SqliteLog(tmp_path / "log.db", NUM_PARTITIONS)
    yield made
    made.close()


@pytest.fixture
def read(log: SqliteLog) -> Iterator[MakeReader]:
    """Makes members of one group that are closed in the end."""
    made: list[LogReader] = []

    def make() -> LogReader:
        made.append(log.reader("g", TOPICS))
        return made[-1]

    yield make
    for reader in made:
        reader.close()


def held(*readers: LogReader) -> list[set[int]]:
    """What each has, once all have looked at the group twice: a share given up, one taken."""
    for _ in range(2):
        for reader in readers:
            _look_again(reader)
            reader.poll(1, 0.0)
    assert all(
        reader.assignment() == {TopicPartition(t, n) for t in TOPICS for n in _numbers(reader)}
        for reader in readers
    )
    return [_numbers(reader) for reader in readers]


def _look_again(reader: Any) -> None:
    reader._lease_checked_at = 0.0


def _numbers(reader: LogReader) -> set[int]:
    return {place.partition for place in reader.assignment()}


def test_a_sessions_traces_and_feedback_lie_in_partitions_of_one_number(log: SqliteLog):
    sessions = [f"s{i}" for i in range(NUM_SESSIONS)]
    for number in range(3):
        log.append([(s, make_feedback(client_seq=number)) for s in sessions])
        log.append([(s, make_trace()) for s in sessions])
    reader = log.reader(None, TOPICS)
    rows = reader.poll(1_000, 0.0)
    reader.close()
    assert len(rows) == 6 * NUM_SESSIONS
    places = {s: {row.partition for row in rows if row.key == s} for s in sessions}
    assert all(len(numbers) == 1 for numbers in places.values())
    assert set().union(*places.values()) == {*range(NUM_PARTITIONS)}
    of_one = [row for row in rows if row.key == "s0" and row.topic == Feedback.TOPIC]
    assert [decode(Feedback, row.value).client_seq for row in of_one] == [0, 1, 2]


def test_other_topics_keep_one_order(log: SqliteLog):
    log.append([(f"k{i}", make_feedback()) for i in range(NUM_SESSIONS)])
    assert len(log.end_offsets(TOPICS)) == 2 * NUM_PARTITIONS
    assert log.end_offsets(["episodes"]) == {TopicPartition("episodes", 0): 0}


def test_members_come_and_go_and_shares_stay_fair(log: SqliteLog, read: MakeReader):
    first = read()
    assert held(first) == [{0, 1, 2, 3}]
    second = read()
    of_first, of_second = held(first, second)
    assert len(of_first) == len(of_second) == 2
    assert of_first | of_second == {0, 1, 2, 3}
    third = read()
    shares = held(first, second, third)
    assert sorted(map(len, shares)) == [1, 1, 2]
    assert set().union(*shares) == {0, 1, 2, 3}
    assert shares[0] <= of_first
    assert shares[1] <= of_second
    first.close()
    assert sorted(map(len, held(second, third))) == [2, 2]


def test_more_members_than_partitions_stand_by(read: MakeReader):
    readers = [read() for _ in range(NUM_PARTITIONS + 1)]
    assert sorted(map(len, held(*readers))) == [0, 1, 1, 1, 1]


def test_what_one_gave_up_uncommitted_the_next_one_reads(log: SqliteLog, read: MakeReader):
    log.append([(f"s{i}", make_feedback()) for i in range(NUM_SESSIONS)])
    first = read()
    assert len(first.poll(100, 0.0)) == NUM_SESSIONS
    done = next(iter(sorted(first.assignment())))
    first.commit({done: log.end_offsets(TOPICS)[done]})
    first.close()
    second = read()
    rows = second.poll(100, 0.0)
    assert len(rows) == NUM_SESSIONS - log.end_offsets(TOPICS)[done]
    assert done.partition not in {row.partition for row in rows}


def test_a_commit_for_a_partition_that_went_to_another_is_refused(log: SqliteLog, read: MakeReader):
    first, second = read(), read()
    held(first)
    mine = first.assignment()
    _, of_second = held(first, second)
    assert of_second
    with pytest.raises(LeaseLost, match="another reader"):
        first.commit(dict.fromkeys(mine, 0))
    assert first.committed() == {}
    first.commit(dict.fromkeys(first.assignment(), 0))


def test_what_another_had_meanwhile_is_read_again_from_its_commit_and_refused_once(
    log: SqliteLog, read: MakeReader, tmp_path: Path
):
    log.append([("s", make_feedback(client_seq=n)) for n in range(6)])
    slept, other = read(), read()
    held(slept)
    [place] = {TopicPartition(row.topic, row.partition) for row in slept.poll(100, 0.0)}
    with sqlite3.connect(tmp_path / "log.db") as db:  # it slept past its lease
        db.execute("UPDATE leases SET until=1")
        db.execute("UPDATE members SET until=1")
    db.close()
    held(other)
    other.commit({place: 4})
    other.close()
    _look_again(slept)
    assert [row.offset for row in slept.poll(100, 0.0)] == [4, 5]
    with pytest.raises(LeaseLost):
        slept.commit({place: 1})
    assert slept.committed() == {place: 4}
    slept.commit({place: 6})


def test_topics_advance_together_however_uneven_they_are(log: SqliteLog):
    for number in range(200):
        log.append([("s", make_trace())])
        log.append([("s", make_feedback(client_seq=n)) for n in range(number % 7)])
    reader = log.reader(None, TOPICS)
    newest = dict.fromkeys(TOPICS, 0.0)
    while rows := reader.poll(100, 0.0):
        before = dict(newest)
        for row in rows:
            newest[row.topic] = max(newest[row.topic], row.appended_at)
        behind = min(before, key=lambda topic: before[topic])
        # Who was ahead is read on only after who was behind, unless there is no more of it.
        assert newest[behind] >= before[behind]
        assert behind in {row.topic for row in rows} or newest[behind] == before[behind]
    assert reader.positions() == log.end_offsets(TOPICS)
    reader.close()


@pytest.mark.slow
def test_a_killed_members_partitions_go_to_the_others(tmp_path: Path, log: SqliteLog):
    log.append([(f"s{i}", make_feedback()) for i in range(NUM_SESSIONS)])
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.tendril.log_children", "hold", str(tmp_path / "log.db"), "g"],
        cwd=PROJECT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline().strip() == str(NUM_SESSIONS)
    reader = log.reader("g", (Feedback.TOPIC,))
    assert list(reader.poll(100, 0.0)) == []
    child.kill()
    child.communicate()
    killed_at = time.monotonic()
    assert len(reader.poll(100, 30.0)) == NUM_SESSIONS
    assert time.monotonic() - killed_at < 2 * LEASE_S
    reader.close()


def test_a_file_remembers_its_partitions(tmp_path: Path, log: SqliteLog):
    log.append([("s", make_feedback())])
    path = tmp_path / "log.db"
    with pytest.raises(InvalidSettings, match=r"expected log\.partitions = 4.*got 2"):
        SqliteLog(path, 2)
    for as_they_are in (SqliteLog(path), SqliteLog(path, NUM_PARTITIONS)):
        assert as_they_are.partitions == NUM_PARTITIONS
        as_they_are.close()


def test_who_only_looks_leaves_the_number_open(tmp_path: Path):
    path = tmp_path / "new.db"
    SqliteLog(path).close()
    made = SqliteLog(path, 2)
    assert len(made.end_offsets(TOPICS)) == 4
    made.close()


def test_a_file_from_before_there_were_partitions_has_one(tmp_path: Path):
    path = tmp_path / "old.db"
    old = SqliteLog(path)
    old.append([("s", make_feedback())])
    old._connection.executescript("DROP TABLE shape; DROP TABLE members")
    old.close()
    with pytest.raises(InvalidSettings, match=r"expected log\.partitions = 1"):
        SqliteLog(path, 4)
    again = SqliteLog(path, 1)
    reader = again.reader("g", TOPICS)
    assert len(reader.poll(10, 0.0)) == 1
    reader.close()
    again.close()
