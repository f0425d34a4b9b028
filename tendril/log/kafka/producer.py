"""Sends records so that they are durable, and gets over a broker that forgot its producer."""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import kafka.errors as errors
from kafka import KafkaProducer

from tendril.log.kafka.client import client_options, connected
from tendril.settings import KafkaSettings

logger = logging.getLogger(__name__)

LINGER_MS = 2
BATCH_BYTES = 256 * 1024
CLOSE_S = 2.0


class Row(NamedTuple):
    """A record on its way to a broker."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class Producer:
    """A producer of kafka-python, made when it is needed and again after an error. Thread-safe."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._producer: Any = None

    def send(self, rows: Sequence[Row]) -> None:
        """All rows, in order; durable on return. Raises `KafkaError`: a part may be sent."""
        try:
            self._send(rows)
        except errors.KafkaError as error:
            if not forgotten(error):
                raise
            logger.warning("sending again with a new producer: %r", error)
            self._send(rows)

    def _send(self, rows: Sequence[Row]) -> None:
        producer = self._open()
        deadline = time.monotonic() + 2 * self._settings.request_timeout_s + 1
        try:
            futures = [
                producer.send(row.topic, key=row.key, value=row.value, headers=row.headers)
                for row in rows
            ]
            for future in futures:
                future.get(timeout=max(0.0, deadline - time.monotonic()))
        except errors.KafkaError:
            # After an error it sends nothing more: what it still holds would come out of order.
            with self._lock:
                if self._producer is producer:
                    self._producer = None
            close_producer(producer, 0.0)
            raise

    def _open(self) -> Any:
        with self._lock:
            if self._producer is None:
                settings = self._settings
                self._producer = connected(
                    KafkaProducer,
                    **client_options(settings),
                    acks="all",
                    enable_idempotence=True,
                    compression_type=None
                    if settings.compression == "none"
                    else settings.compression,
                    linger_ms=LINGER_MS,
                    batch_size=min(BATCH_BYTES, settings.max_record_bytes),
                    max_request_size=settings.max_record_bytes,
                    max_block_ms=int(1_000 * settings.request_timeout_s),
                    delivery_timeout_ms=int(2_000 * settings.request_timeout_s),
                    allow_auto_create_topics=False,
                    metrics_enabled=False,
                )
            return self._producer

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, CLOSE_S)


def forgotten(error: errors.KafkaError) -> bool:
    """Whether the broker lost this producer's state, as some do when they restart."""
    return isinstance(
        error,
        errors.OutOfOrderSequenceNumberError
        | errors.UnknownProducerIdError
        | errors.InvalidProducerEpochError
        | errors.ProducerFencedError
        | errors.InvalidProducerIdMappingError,
    )


def close_producer(producer: Any, timeout_s: float) -> None:
    """Stop it within `timeout_s`, whatever it still waits for."""
    with suppress(errors.KafkaError):
        producer.flush(timeout_s)
    producer._sender.force_close()
    producer._sender.join(CLOSE_S)
    with suppress(errors.KafkaError):
        producer.close(timeout=0)
