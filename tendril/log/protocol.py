"""What every event log promises.

Records of one key keep their order. Delivery is at least once: a reader that stops before it
commits sees the same records again, so readers make repeats harmless by the ids inside records.
Of several readers in one group, each partition is read by one at a time. Partitions of one number
go together: who reads `traces` 3 also reads `feedback` 3, where one session's records lie. They
are shared out again when a reader comes or goes; one for whom none is left stands by.
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
    """A member of a consumer group, or a reader beside all groups. One thread at a time.

    Every call may raise `LogUnavailable`; nothing is passed over by it.
    """

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        """The next records in offset order per partition, all of them of `assignment()`.

        Empty after `timeout_s` when nothing was left to read in any partition of `assignment()`;
        while there is something, and to become a member, it waits for longer.
        """
        ...

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member reads now, as of its last call; empty: it stands by."""
        ...

    def positions(self) -> Offsets:
        """For each partition of `assignment()` the offset of the next record `poll` will give.

        Equal to the log's `end_offsets` where the reader is caught up.
        """
        ...

    def commit(self, offsets: Offsets) -> None:
        """Remember for the group what to read next, all or none of it.

        Raises `LeaseLost` unless each partition is this member's and was all the while, and
        `ValueError` for a reader without a group.
        """
        ...

    def committed(self) -> Offsets:
        """What the group last committed, for the partitions that have a commit."""
        ...

    def seek(self, offsets: Offsets) -> None:
        """Read on from `offsets`, whatever the group committed.

        For a partition that is not this member's yet, as soon as it is.
        """
        ...

    def close(self) -> None:
        """Leave the group, so that others take over at once; at most a few seconds."""
        ...


class EventLog(Protocol):
    """Append and read records by topic. Thread-safe."""

    def append(self, records: Iterable[tuple[str, Record]]) -> None:
        """Append (key, record) pairs; durable on return.

        Raises `LogUnavailable`: then a part may be on the log, and the same call again is right, as
        readers drop repeats by id. A record that cannot be encoded leaves nothing; the embedded
        logs append all or none whatever happens.
        """
        ...

    def reader(self, group: str | None, topics: Sequence[str]) -> LogReader:
        """Join `group`; reading starts at its committed offsets, else at the beginning.

        None: every partition from the beginning, beside all groups and without commits.
        """
        ...

    def end_offsets(self, topics: Sequence[str]) -> Offsets:
        """The offset that the next record of each partition will get."""
        ...

    def close(self) -> None:
        """Readers of a closed log go on."""
        ...
