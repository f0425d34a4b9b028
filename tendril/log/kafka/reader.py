"""A member of a consumer group, or a reader beside all groups."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import kafka.errors as errors
from kafka import KafkaConsumer
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.structs import MemberState, OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPartition

from tendril.log.kafka.assignor import Copartitioned
from tendril.log.kafka.client import client_options, connected, explained
from tendril.log.partitions import num_partitions
from tendril.log.protocol import LeaseLost, LogRecord, Offsets, TopicPartition
from tendril.log.references import References
from tendril.settings import KafkaSettings

FETCH_BYTES = 4 * 1024 * 1024
"""Of one partition in one answer."""
STEP_S = 0.2
"""How long a poll sits in the client before it looks again."""
CLOSE_S = 2.0


def partitions_of(
    topics: Sequence[str], settings: KafkaSettings
) -> dict[KafkaPartition, TopicPartition]:
    """Every partition of our topics, by its name on the cluster."""
    return {
        KafkaPartition(settings.topic_prefix + topic, number): TopicPartition(topic, number)
        for topic in topics
        for number in range(num_partitions(topic, settings.partitions))
    }


def consumer_options(settings: KafkaSettings) -> dict[str, Any]:
    """Of every consumer of ours."""
    return {
        **client_options(settings),
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "allow_auto_create_topics": False,
        "max_partition_fetch_bytes": max(FETCH_BYTES, settings.max_record_bytes),
        "metrics_enabled": False,
    }


def member_options(settings: KafkaSettings, group: str, owned: Any) -> dict[str, Any]:
    """Of a member of a group."""
    static = {"group_instance_id": f"{settings.member}-{group}"} if settings.member else {}
    return static | {
        "group_id": settings.topic_prefix + group,
        "session_timeout_ms": int(1_000 * settings.session_timeout_s),
        "heartbeat_interval_ms": int(1_000 * settings.session_timeout_s / 10),
        "max_poll_interval_ms": int(1_000 * settings.max_poll_interval_s),
        "partition_assignment_strategy": (Copartitioned(owned),),
    }


class Holdings(ConsumerRebalanceListener):
    """What this member holds, and what it has lost since someone asked.

    kafka-python calls it on its own thread: each change replaces a whole set.
    """

    def __init__(self, seek: Callable[[KafkaPartition], None]) -> None:
        self._seek = seek
        self.held: frozenset[KafkaPartition] = frozenset()
        self.lost: frozenset[KafkaPartition] = frozenset()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.held |= frozenset(assigned)
        for place in assigned:
            self._seek(place)

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.held -= frozenset(revoked)
        self.lost |= frozenset(revoked)


class KafkaReader:
    """See `LogReader`. Joins its group with the first call that needs to know what it reads."""

    def __init__(
        self,
        settings: KafkaSettings,
        references: References,
        prepare: Callable[[], None],
        group: str | None,
        topics: Sequence[str],
    ) -> None:
        self._settings, self._references, self._prepare = settings, references, prepare
        self._group, self._topics = group, tuple(topics)
        self._names = partitions_of(topics, settings)
        self._places = {place: name for name, place in self._names.items()}
        self._holdings = Holdings(self._seek_sought)
        self._sought: dict[KafkaPartition, int] = {}
        self._waiting: list[Any] = []  # polled while a call only wanted to be a member
        self._consumer: Any = None

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        started = time.monotonic()
        deadline = started + timeout_s
        join_until = max(deadline, started + self._settings.join_timeout_s)
        with self._explained():
            consumer = self._open()
            step_s = 0.0
            while True:
                found = self._take(consumer, max_records, step_s)
                if found:
                    return found
                now = time.monotonic()
                if now >= deadline and self._nothing_left(consumer, now < join_until):
                    return []
                step_s = min(STEP_S, deadline - now) if now < deadline else STEP_S

    def _take(self, consumer: Any, max_records: int, wait_s: float) -> list[LogRecord]:
        if self._waiting:
            self._drop_lost()
        else:  # what comes fresh is of the present assignment
            polled = consumer.poll(timeout_ms=1_000 * wait_s, max_records=max_records)
            self._waiting = [record for records in polled.values() for record in records]
        found = self._records(self._waiting[:max_records])
        self._waiting = self._waiting[max_records:]  # what could not be loaded is tried again
        return found

    def _drop_lost(self) -> None:
        """What was polled before a partition went away belongs to its next reader."""
        held = self._holdings.held
        if self._group is not None and any(
            KafkaPartition(r.topic, r.partition) not in held for r in self._waiting
        ):
            self._waiting = [
                r for r in self._waiting if KafkaPartition(r.topic, r.partition) in held
            ]

    def _nothing_left(self, consumer: Any, may_join: bool) -> bool:
        """Whether an empty poll is the truth, and not only an answer still on its way."""
        if not self._is_member(consumer):
            return not may_join
        held = self._held()
        ends = consumer.end_offsets(list(held)) if held else {}
        return all(self._position(consumer, place) >= end for place, end in ends.items())

    def _position(self, consumer: Any, place: KafkaPartition) -> int:
        for record in self._waiting:
            if (record.topic, record.partition) == place:
                return int(record.offset)
        offset = consumer.position(place, timeout_ms=1_000 * self._settings.request_timeout_s)
        return -1 if offset is None else int(offset)

    def _records(self, polled: Sequence[Any]) -> list[LogRecord]:
        names = self._names
        return [
            LogRecord(
                *names[r.topic, r.partition],
                r.offset,
                r.key.decode(),
                self._loaded(r) if r.headers else r.value,
                r.timestamp / 1_000,
            )
            for r in polled
        ]

    def _loaded(self, record: Any) -> bytes:
        """Of a record that is on the log by reference."""
        place = self._names[record.topic, record.partition]
        return self._references.get(place.topic, record.value)

    def assignment(self) -> frozenset[TopicPartition]:
        with self._explained():
            self._join()
            return frozenset(self._names[name] for name in self._held())

    def positions(self) -> Offsets:
        with self._explained():
            consumer = self._join()
            return {self._names[name]: self._position(consumer, name) for name in self._held()}

    def commit(self, offsets: Offsets) -> None:
        if self._group is None:
            raise ValueError("expected a reader with a group, got one without: it cannot commit")
        new = {self._places[p]: OffsetAndMetadata(n, "", -1) for p, n in offsets.items()}
        with self._explained():
            consumer = self._join()
            self._refuse_lost(new)
            try:
                self._commit(consumer, new)
            except (errors.CommitFailedError, errors.RebalanceInProgressError):
                self._holdings.lost = frozenset()
                self._join()  # the group shares out anew: what stays ours may be committed
                self._refuse_lost(new)
                self._commit_again(consumer, new)

    def _commit(self, consumer: Any, new: dict[KafkaPartition, OffsetAndMetadata]) -> None:
        if new:
            consumer.commit(new, timeout_ms=1_000 * self._settings.request_timeout_s)
        self._holdings.lost = frozenset()

    def _commit_again(self, consumer: Any, new: dict[KafkaPartition, OffsetAndMetadata]) -> None:
        try:
            self._commit(consumer, new)
        except (errors.CommitFailedError, errors.RebalanceInProgressError) as error:
            raise LeaseLost(f"group {self._group}: {error}") from error

    def _refuse_lost(self, new: dict[KafkaPartition, OffsetAndMetadata]) -> None:
        lost = self._holdings.lost & new.keys() or new.keys() - self._holdings.held
        self._holdings.lost -= new.keys()  # said once: then the caller has started again
        if lost:
            topic = self._names[min(lost)].topic
            raise LeaseLost(f"group {self._group}: {topic} has another reader")

    def committed(self) -> Offsets:
        if self._group is None:
            return {}
        timeout_ms = 1_000 * self._settings.request_timeout_s
        with self._explained():
            consumer = self._open()
            found = {
                p: consumer.committed(n, timeout_ms=timeout_ms) for n, p in self._names.items()
            }
        return {place: int(offset) for place, offset in found.items() if offset is not None}

    def seek(self, offsets: Offsets) -> None:
        for place, offset in offsets.items():
            name = self._places[place]
            self._sought[name] = offset
            self._waiting = [r for r in self._waiting if (r.topic, r.partition) != name]
            if self._consumer is not None and name in self._held():
                self._seek_sought(name)

    def _seek_sought(self, name: KafkaPartition) -> None:
        if name in self._sought:
            self._consumer.seek(name, self._sought.pop(name))

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(autocommit=False, timeout_ms=1_000 * CLOSE_S)

    def _explained(self) -> Any:
        return explained(self._settings.servers, lambda: None)

    def _open(self) -> Any:
        """The consumer, made on first use. Raises `KafkaError`."""
        if self._consumer is None:
            self._prepare()
            options = consumer_options(self._settings)
            if self._group is None:
                self._consumer = connected(KafkaConsumer, **options)
                self._consumer.assign(list(self._names))
                for name in self._names:
                    self._seek_sought(name)
            else:
                mine = member_options(self._settings, self._group, lambda: self._holdings.held)
                self._consumer = connected(KafkaConsumer, **options, **mine)
                topics = [self._settings.topic_prefix + topic for topic in self._topics]
                self._consumer.subscribe(topics, listener=self._holdings)
        return self._consumer

    def _join(self) -> Any:
        """Be a member, if that is to be had within the time it may take."""
        consumer = self._open()
        until = time.monotonic() + self._settings.join_timeout_s
        while not self._is_member(consumer) and time.monotonic() < until:
            polled = consumer.poll(timeout_ms=1_000 * STEP_S, max_records=1)
            self._waiting += [record for records in polled.values() for record in records]
            self._drop_lost()
        return consumer

    def _is_member(self, consumer: Any) -> bool:
        return self._group is None or consumer.group_metadata().state == MemberState.STABLE

    def _held(self) -> frozenset[KafkaPartition]:
        return frozenset(self._names) if self._group is None else self._holdings.held
