"""The event log on a Kafka cluster."""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from kafka import KafkaConsumer

from tendril.log import kafka_topics
from tendril.log.kafka.client import connected, explained
from tendril.log.kafka.producer import Producer, Row
from tendril.log.kafka.reader import KafkaReader, consumer_options, partitions_of
from tendril.log.kafka.topics import prepare_topics
from tendril.log.protocol import Offsets
from tendril.log.references import HEADER, References
from tendril.records import Record, encode
from tendril.settings import KafkaSettings

CLOSE_S = 2.0
RECORD_OVERHEAD_BYTES = 300


class KafkaLog:
    """See `EventLog`. Any number of processes on any number of machines.

    Nothing connects before it is needed, so a process can start while the cluster is away.
    """

    def __init__(self, settings: KafkaSettings, references: References) -> None:
        self._settings, self._references = settings, references
        self._producer = Producer(settings)
        self._lock = threading.Lock()
        self._looker: Any = None
        self._prepared = False

    def append(self, records: Iterable[tuple[str, Record]]) -> None:
        encoded = [(record.TOPIC, key.encode(), encode(record)) for key, record in records]
        if not encoded:
            return
        with explained(self._settings.servers, self._look_again):
            self._prepare()
            self._producer.send([self._row(*parts) for parts in encoded])

    def _row(self, topic: str, key: bytes, value: bytes) -> Row:
        name = self._settings.topic_prefix + topic
        if len(key) + len(value) + RECORD_OVERHEAD_BYTES <= self._settings.max_record_bytes:
            return Row(name, key, value, [])
        return Row(name, key, self._references.put(topic, value), [(HEADER, b"1")])

    def reader(self, group: str | None, topics: Sequence[str]) -> "KafkaReader":
        return KafkaReader(self._settings, self._references, self._prepare, group, topics)

    def end_offsets(self, topics: Sequence[str]) -> Offsets:
        places = partitions_of(topics, self._settings)
        with explained(self._settings.servers, self._look_again):
            self._prepare()
            with self._lock:
                if self._looker is None:
                    self._looker = connected(KafkaConsumer, **consumer_options(self._settings))
                ends = self._looker.end_offsets(list(places))
        return {place: ends[name] for name, place in places.items()}

    def _prepare(self) -> None:
        """Create the topics that are missing and check the others, once."""
        if self._prepared:
            return
        with self._lock:
            if not self._prepared:
                prepare_topics(self._settings)
                self._references.expire(kafka_topics.retention_s(self._settings))
                self._prepared = True

    def _look_again(self) -> None:
        """A topic may be missing: the next call looks."""
        self._prepared = False

    def close(self) -> None:
        with self._lock:
            looker, self._looker = self._looker, None
        self._producer.close()
        if looker is not None:
            looker.close(autocommit=False, timeout_ms=1_000 * CLOSE_S)
