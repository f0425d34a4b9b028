"""One partition's rows on their way to the lake: gathered, committed together, each once.

A commit carries how far it reaches, so what an earlier process has committed is left out. Nothing
is kept here that the log (traces, feedback) or the outbox (episodes) would not give again.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from signals.intake import Taken
from signals.outbox import Outgoing
from tendril.lake.offsets import app_id
from tendril.log import LogRecord, Offsets, TopicPartition
from tendril.records import Episode, Feedback, Ledger, Quarantine, Trace

if TYPE_CHECKING:  # Arrow and Delta take a second to import
    import pyarrow as pa

    from tendril.lake.lake import Lake

MAX_ROWS = 50_000
"""After which a commit does not wait for its time."""
CHUNK_ROWS = 1_000
"""Rows become columns soon: as objects they take several times the memory, and leave the caches."""
TABLES = (Trace.TOPIC, Feedback.TOPIC, Episode.TOPIC, Quarantine.TOPIC)
R = TypeVar("R")


class Gathered:
    """Rows of one table that wait for its next commit, as Arrow but for the last few."""

    def __init__(self, to_arrow: "Callable[[list[Any]], pa.Table]") -> None:
        self._to_arrow = to_arrow
        self._rows: list[Any] = []
        self._chunks: list[pa.Table] = []
        self.num_rows = 0

    def add(self, rows: Sequence[Any]) -> None:
        self._rows += rows
        self.num_rows += len(rows)
        if len(self._rows) >= CHUNK_ROWS:
            self._convert()

    def _convert(self) -> None:
        self._chunks.append(self._to_arrow(self._rows))
        self._rows = []

    def table(self) -> "pa.Table":
        """All of them."""
        import pyarrow as pa

        if self._rows:
            self._convert()
        return pa.concat_tables(self._chunks)

    def clear(self) -> None:
        self._rows, self._chunks, self.num_rows = [], [], 0


class LakeWriter:
    """See the module. Every call may raise `LakeUnavailable` or `OffsetsMoved`: then start over."""

    def __init__(self, lake: "Lake", partition: int, *, interval_s: float) -> None:
        self._lake, self._partition, self._interval_s = lake, partition, interval_s
        self._reached = {table: self._committed(table) for table in TABLES}
        self._gathered = gathered()
        self._ahead: dict[str, int] = {}
        self._committed_at = time.monotonic()

    def offsets(self) -> Offsets:
        """From where on the log's records are wanted."""
        return {
            TopicPartition(topic, self._partition): self._reached[topic]
            for topic in (Trace.TOPIC, Feedback.TOPIC)
        }

    @property
    def next_episode(self) -> int:
        """Number behind the last outgoing record that the lake has seen."""
        return max(self._reached[Episode.TOPIC], self._reached[Quarantine.TOPIC])

    def add(self, batch: Taken) -> None:
        """Traces and feedback as they came from the log."""
        fresh = batch.after(self.offsets())
        self._gathered[Trace.TOPIC].add(fresh.traces)
        self._gathered[Feedback.TOPIC].add(fresh.feedback)
        for reach in fresh.progress:
            self._ahead[reach.place.topic] = reach.next_offset

    def add_episodes(self, outgoing: Iterable[Outgoing]) -> None:
        """Episodes among what was decided, in order; those held back have a table of their own."""
        rows: dict[str, list[Episode]] = {Episode.TOPIC: [], Quarantine.TOPIC: []}
        for seq, _, record in outgoing:
            if not isinstance(record, Episode):
                continue
            table = Quarantine.TOPIC if record.quarantine_ids else Episode.TOPIC
            if seq >= self._reached[table]:
                self._ahead[table] = seq + 1
                rows[table].append(record)
        for table, episodes in rows.items():
            self._gathered[table].add(episodes)

    def is_due(self) -> bool:
        num_rows = sum(waiting.num_rows for waiting in self._gathered.values())
        is_time = time.monotonic() - self._committed_at >= self._interval_s
        return num_rows >= MAX_ROWS or (num_rows > 0 and is_time)

    def commit(self) -> None:
        """Write what has gathered."""
        for table, waiting in self._gathered.items():
            if waiting.num_rows:
                self._append(table, waiting.table())
                waiting.clear()
        self._committed_at = time.monotonic()

    def write_ledger(self, ledger: Ledger) -> None:
        from tendril.lake.rows import ledgers_to_arrow

        self._lake.append("ledger", ledgers_to_arrow([ledger]), {})

    def _append(self, topic: str, rows: "pa.Table") -> None:
        name, reached = app_id(topic, self._partition), self._ahead[topic]
        before = self._reached[topic]
        after: Mapping[str, int] = {name: before} if before else {}
        self._lake.append(topic, rows, {name: reached}, after)
        self._reached[topic] = reached

    def _committed(self, topic: str) -> int:
        name = app_id(topic, self._partition)
        return self._lake.committed(topic, [name]).get(name, 0)


def gathered() -> dict[str, Gathered]:
    """Nothing yet, by table."""
    from tendril.lake.rows import (
        episodes_to_arrow,
        feedback_to_arrow,
        quarantined_to_arrow,
        traces_to_arrow,
    )

    return {
        Trace.TOPIC: Gathered(lambda pairs: traces_to_arrow(*unzipped(pairs))),
        Feedback.TOPIC: Gathered(lambda pairs: feedback_to_arrow(*unzipped(pairs))),
        Episode.TOPIC: Gathered(episodes_to_arrow),
        Quarantine.TOPIC: Gathered(quarantined_to_arrow),
    }


def unzipped(pairs: Sequence[tuple[R, LogRecord]]) -> tuple[list[R], list[LogRecord]]:
    """Records, and where on the log they lay."""
    return [record for record, _ in pairs], [place for _, place in pairs]
