"""From bytes on the log to usable traces and feedback: what comes from outside is checked here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import NamedTuple

from tendril.log import LogRecord, TopicPartition
from tendril.records import Feedback, InvalidRecord, Trace, decode


class Progress(NamedTuple):
    """How far a batch reaches in one partition."""

    place: TopicPartition
    first_offset: int
    next_offset: int
    newest_at: float


@dataclass(frozen=True)
class Taken:
    """A batch of one partition number, each topic in the order of its log."""

    traces: Sequence[tuple[Trace, LogRecord]]
    feedback: Sequence[tuple[Feedback, LogRecord]]
    invalid: Sequence[tuple[LogRecord, InvalidRecord]]

    def records(self) -> Iterator[LogRecord]:
        yield from (record for _, record in self.traces)
        yield from (record for _, record in self.feedback)
        yield from (record for record, _ in self.invalid)

    @cached_property
    def progress(self) -> list[Progress]:
        """By topic."""
        records: dict[TopicPartition, list[LogRecord]] = {}
        for record in self.records():
            records.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        return [
            Progress(
                place,
                min(record.offset for record in here),
                max(record.offset for record in here) + 1,
                max(record.appended_at for record in here),
            )
            for place, here in records.items()
        ]

    def after(self, offsets: Mapping[TopicPartition, int]) -> "Taken":
        """Without what lies before `offsets`."""
        if all(reach.first_offset >= offsets.get(reach.place, 0) for reach in self.progress):
            return self

        def is_new(record: LogRecord) -> bool:
            return record.offset >= offsets.get(TopicPartition(record.topic, record.partition), 0)

        return Taken(
            [pair for pair in self.traces if is_new(pair[1])],
            [pair for pair in self.feedback if is_new(pair[1])],
            [pair for pair in self.invalid if is_new(pair[0])],
        )


def take(records: Sequence[LogRecord]) -> Taken:
    """Decode and check records of the `traces` and `feedback` topics."""
    traces: list[tuple[Trace, LogRecord]] = []
    feedback: list[tuple[Feedback, LogRecord]] = []
    invalid: list[tuple[LogRecord, InvalidRecord]] = []
    for record in sorted(records, key=_place):
        try:
            if record.topic == Trace.TOPIC:
                traces.append((checked_trace(decode(Trace, record.value)), record))
            else:
                feedback.append((checked_feedback(decode(Feedback, record.value)), record))
        except InvalidRecord as error:
            invalid.append((record, error))
    return Taken(traces, feedback, invalid)


def _place(record: LogRecord) -> tuple[str, int]:
    return record.topic, record.offset


def checked_trace(trace: Trace) -> Trace:
    """The trace itself. Raises `InvalidRecord` saying what is wrong with it."""
    if not isfinite(trace.served_at):
        raise InvalidRecord(f"trace {trace.trace_id}: served_at {trace.served_at} is no time")
    if trace.token_bytes and min(trace.token_bytes) < 0:
        raise InvalidRecord(f"trace {trace.trace_id}: negative token_bytes {trace.token_bytes}")
    if not all(map(isfinite, trace.behavior_logprobs)):
        raise InvalidRecord(f"trace {trace.trace_id}: behavior_logprobs are not all finite")
    return trace


def checked_feedback(event: Feedback) -> Feedback:
    """The event itself. Raises `InvalidRecord` saying what is wrong with it."""
    monotonic_s, visible_ms = event.client_monotonic_s, event.visible_ms
    if not (
        isfinite(event.client_time)
        and isfinite(event.ingested_at)
        and (monotonic_s is None or isfinite(monotonic_s))
        and (visible_ms is None or isfinite(visible_ms))
    ):
        raise InvalidRecord(f"feedback {event.event_id}: a time is not finite")
    return event
