"""The join of `benchmarks.join` as a bytewax flow, run by a Python that has bytewax and msgspec.

    python bytewax_join.py LOG.db WINDOW_S

It keys records by trace, collects each window by event time, drops repeats and counts what belongs
together: no rewards, no durable state, no tables. Prints the events a second and what was joined.
"""

import heapq
import json
import sqlite3
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import msgspec
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators.windowing import EventClock, TumblingWindower, collect_window
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

BATCH = 10_000
TOPICS = ("traces", "feedback")
LATE = timedelta(seconds=60)
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
Event = tuple[datetime, str, str]
"""Time logged, topic, id."""


class Seen(msgspec.Struct):
    """What the join needs of a record."""

    trace_id: str
    event_id: str = ""


def rows_of(path: str) -> Iterator[tuple[float, str, bytes]]:
    """Both topics of the log, by time; a topic's partitions are `traces`, `traces/1`, ..."""
    question = "SELECT appended_at, ?, value FROM records WHERE topic = ? ORDER BY offset"
    db = sqlite3.connect(path)
    names = [name for (name,) in db.execute("SELECT topic FROM topics")]
    sequences = [(name.partition("/")[0], name) for name in names]
    return heapq.merge(
        *(db.cursor().execute(question, pair) for pair in sequences if pair[0] in TOPICS),
        key=lambda row: row[0],
    )


class LogPartition(StatelessSourcePartition[tuple[str, Event]]):
    """Reads the log."""

    def __init__(self, path: str) -> None:
        self._rows = rows_of(path)
        self._decode = msgspec.msgpack.Decoder(Seen).decode

    def next_batch(self) -> list[tuple[str, Event]]:
        batch: list[tuple[str, Event]] = []
        for at, topic, value in self._rows:
            seen = self._decode(value)
            moment = datetime.fromtimestamp(at, UTC)
            batch.append((seen.trace_id, (moment, topic, seen.event_id)))
            if len(batch) == BATCH:
                break
        if not batch:
            raise StopIteration
        return batch


class LogSource(DynamicSource[tuple[str, Event]]):
    """One worker reads all of it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def build(self, step_id: str, worker_index: int, worker_count: int) -> LogPartition:
        return LogPartition(self._path)


class Counter(StatelessSinkPartition[Any]):
    """Counts traces, and the feedback that belongs to them."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def write_batch(self, items: list[Any]) -> None:
        for _, (_, events) in items:
            ids = {(topic, event_id) for _, topic, event_id in events}
            if ("traces", "") in ids:
                self._counts["traces"] += 1
                self._counts["feedback"] += len(ids) - 1
            self._counts["read"] += len(events)


class CountSink(DynamicSink[Any]):
    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Counter:
        return Counter(self._counts)


def main(path: str, window_s: float) -> None:
    counts = {"traces": 0, "feedback": 0, "read": 0}
    flow = Dataflow("join")
    records = op.input("log", flow, LogSource(path))
    clock = EventClock(lambda event: event[0], wait_for_system_duration=LATE)
    windows = TumblingWindower(length=timedelta(seconds=window_s), align_to=EPOCH)
    joined = collect_window("window", records, clock, windows)
    op.output("count", joined.down, CountSink(counts))
    started = time.perf_counter()
    run_main(flow)
    seconds = time.perf_counter() - started
    print(json.dumps({"events_per_s": counts["read"] / seconds, **counts}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
