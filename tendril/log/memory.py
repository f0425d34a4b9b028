"""An event log inside one process, for tests and for trying things out."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tendril.ids import new_id
from tendril.log.protocol import LeaseLost, LogRecord, Offsets, TopicPartition
from tendril.records import Record, encode


class MemoryLog:
    """Keeps everything until the process ends. Thread-safe; one partition a topic."""

    def __init__(self) -> None:
        self._records: dict[str, list[LogRecord]] = defaultdict(list)
        self._committed: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        self._owners: dict[tuple[str, str], MemoryReader] = {}
        self._changed = threading.Condition()

    def append(self, records: Iterable[tuple[str, Record]]) -> None:
        encoded = [(record.TOPIC, key, encode(record)) for key, record in records]  # all or none
        with self._changed:
            for topic, key, value in encoded:
                rows = self._records[topic]
                rows.append(LogRecord(topic, 0, len(rows), key, value, time.time()))
            self._changed.notify_all()

    def reader(self, group: str | None, topics: Sequence[str]) -> "MemoryReader":
        return MemoryReader(self, group, topics)

    def end_offsets(self, topics: Sequence[str]) -> Offsets:
        with self._changed:
            return {TopicPartition(t, 0): len(self._records[t]) for t in topics}

    def close(self) -> None:
        pass


class MemoryReader:
    """See `LogReader`."""

    def __init__(self, log: MemoryLog, group: str | None, topics: Sequence[str]) -> None:
        self._log, self._topics = log, tuple(topics)
        self._in_group = group is not None
        self._group = group or new_id()
        self._next: dict[TopicPartition, int] = {}
        self._sought: dict[TopicPartition, int] = {}  # where to start a topic not yet owned

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        deadline = time.monotonic() + timeout_s
        with self._log._changed:
            while True:
                batch = self._take(max_records)
                remaining = deadline - time.monotonic()
                if batch or remaining <= 0:
                    return batch
                self._log._changed.wait(remaining)

    def _take(self, max_records: int) -> list[LogRecord]:
        batch: list[LogRecord] = []
        for topic in self._topics:
            if not self._owns(topic):
                continue
            place = TopicPartition(topic, 0)
            start = self._next.get(place, 0)
            rows = self._log._records[topic][start : start + max_records - len(batch)]
            batch += rows
            self._next[place] = start + len(rows)
        return batch

    def _owns(self, topic: str) -> bool:
        owner = self._log._owners.setdefault((self._group, topic), self)
        place = TopicPartition(topic, 0)
        if owner is self and place not in self._next:
            committed = self._log._committed[self._group].get(place, 0)
            self._next[place] = self._sought.pop(place, committed)
        return owner is self

    def assignment(self) -> frozenset[TopicPartition]:
        with self._log._changed:
            return frozenset(TopicPartition(t, 0) for t in self._topics if self._owns(t))

    def positions(self) -> Offsets:
        with self._log._changed:
            return {TopicPartition(t, 0): self._next[TopicPartition(t, 0)]
                    for t in self._topics if self._owns(t)}  # fmt: skip

    def commit(self, offsets: Offsets) -> None:
        if not self._in_group:
            raise ValueError("expected a reader with a group, got one without: it cannot commit")
        with self._log._changed:
            for place in offsets:
                if self._log._owners.get((self._group, place.topic)) is not self:
                    raise LeaseLost(f"group {self._group}: {place.topic} has another reader")
            self._log._committed[self._group].update(offsets)

    def committed(self) -> Offsets:
        with self._log._changed:
            committed = self._log._committed[self._group]
            return {p: offset for p, offset in committed.items() if p.topic in self._topics}

    def seek(self, offsets: Offsets) -> None:
        with self._log._changed:
            for place, offset in offsets.items():
                owned = self._owns(place.topic)
                (self._next if owned else self._sought)[place] = offset

    def close(self) -> None:
        with self._log._changed:
            for topic in self._topics:
                if self._log._owners.get((self._group, topic)) is self:
                    del self._log._owners[self._group, topic]
            self._next.clear()
            self._log._changed.notify_all()
