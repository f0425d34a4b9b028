"""Reads what lies on the log: what waits for a reader, and topics from their beginning."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from tendril.log.protocol import EventLog, LogReader, LogRecord, TopicPartition
from tendril.records import InvalidRecord, Record, decode

R = TypeVar("R", bound=Record)
BATCH_RECORDS = 2_000


def drain(reader: LogReader, batch_records: int = BATCH_RECORDS) -> Iterator[LogRecord]:
    """What waits for `reader` now, and what comes meanwhile. Raises `LogUnavailable`."""
    while records := reader.poll(batch_records, 0.0):
        yield from records


def readable(records: Iterable[LogRecord], record_type: type[R]) -> Iterator[tuple[R, float]]:
    """Those that can be read, and when each was logged; the others are somebody's dead letters."""
    for record in records:
        try:
            yield decode(record_type, record.value), record.appended_at
        except InvalidRecord:
            continue


def read_all(
    log: EventLog, topics: Sequence[str], batch_records: int = BATCH_RECORDS
) -> Iterator[LogRecord]:
    """What is on these topics now; what writers add meanwhile is left to the next run.

    Raises `LogUnavailable`.
    """
    left = {place: end for place, end in log.end_offsets(topics).items() if end}
    reader = log.reader(None, topics)
    try:  # what a partition ended with may be deleted, so an empty poll is an end too
        while left and (records := reader.poll(batch_records, 0.0)):
            for record in records:
                place = TopicPartition(record.topic, record.partition)
                if record.offset + 1 >= left.get(place, math.inf):
                    del left[place]
            yield from records
    finally:
        reader.close()
