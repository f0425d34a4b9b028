"""What every event log promises.

Records of one key keep their order. Delivery is at least once: a reader that stops before it
commits sees the same records again, so readers make repeats harmless by the ids inside records.
Of several readers in one group, each partition is read by one at a time; the embedded logs have
one partition, so a second reader of a group stands by until the first stops or dies.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tendril.records import DeadLetter, InvalidRecord, Record


class TopicPartition(NamedTuple):
    """One ordered sequence of records."""

    topic: str
    partition: int


Offsets = Mapping[TopicPartition, int]
"""Per partition, the offset of the next record to read."""


class LogRecord(NamedTuple):
    """One record as it lies on the log; `value` is msgpack, see `tendril.records`."""

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes
    appended_at: float

    def dead_letter(self, error: InvalidRecord, at: float) -> DeadLetter:
        """What to append in the place of a record that could not be read."""
        return DeadLetter(topic=self.topic, reason=str(error), value=self.value, at=at)


class LogUnavailable(RuntimeError):
    """The log cannot be reached, is full or damaged; once mended, the same call works."""


class LeaseLost(RuntimeError):
    """Another reader of the group has taken over: stop, and start again from its offsets."""


class LogReader(Protocol):
    """A member of a consumer group."""

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        """The next records in offset order per partition; empty after `timeout_s` without any."""
        ...

    def commit(self, offsets: Offsets) -> None:
        """Remember for the group what to read next. Raises `LeaseLost`."""
        ...

    def committed(self) -> Offsets:
        """What the group last committed, for the partitions that have a commit."""
        ...

    def seek(self, offsets: Offsets) -> None:
        """Read on from `offsets`, whatever the group committed.

        A stand-by reads from there when it takes over.
        """
        ...

    def close(self) -> None:
        """Leave the group, so that a stand-by takes over at once."""
        ...


class EventLog(Protocol):
    """Append and read records by topic."""

    def append(self, records: Iterable[tuple[str, Record]]) -> None:
        """Append (key, record) pairs; durable on return, all or none per call.

        Raises `LogUnavailable`.
        """
        ...

    def reader(self, group: str, topics: Sequence[str]) -> LogReader:
        """Join `group`; reading starts at its committed offsets, else at the beginning."""
        ...

    def end_offsets(self, topics: Sequence[str]) -> Offsets:
        """The offset that the next record of each partition will get."""
        ...

    def close(self) -> None: ...
