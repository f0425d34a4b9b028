"""KafkaLog: reading, appending and the join, each against bare kafka-python on the same broker.

In each round ours and the peer read, or send, the same records of `join` one after the other, so
that what else the machine does falls on both; a ratio is the median of the rounds' own. The broker
is one from a package, or that of TENDRIL_TEST_KAFKA. Both read as members of a group and send at
the same settings; ours also encodes. KAFKA_RECORDS in the environment (default 120000) sets how
many, KAFKA_ROUNDS (3) how often.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kafka import KafkaConsumer, KafkaProducer

from benchmarks.figures import Figure
from benchmarks.join import records_of
from benchmarks.joining import join
from signals.joiner import TOPICS
from tendril.log.kafka import KafkaLog
from tendril.log.kafka.producer import BATCH_BYTES, LINGER_MS
from tendril.log.kafka.reader import FETCH_BYTES
from tendril.log.references import References
from tendril.records import Record, Trace, encode
from tendril.settings import KafkaSettings, LogSettings, Settings, SignalsSettings
from tests.tendril.kafka_broker import broker_address, own_prefix

NUM_PARTITIONS = 4
BATCH_RECORDS = 5_000
APPENDED_RECORDS = 500
"""At once: what a spool sends when it has fallen behind."""
POLL_S = 1.0
JOINS = {"join to Delta, 1 process": 1, "join to Delta, 2 processes": 2}
MIN_RATIO = 0.8

Rows = Sequence[tuple[str, Record]]


class Pair(NamedTuple):
    """Records a second, ours and the peer's, one straight after the other."""

    ours: float
    peer: float


def run() -> list[Figure]:
    """About two minutes on two cores."""
    num_rounds = int(os.environ.get("KAFKA_ROUNDS", "3"))
    timed = [
        (at, key, record)
        for topic in TOPICS
        for at, key, record in records_of(topic, int(os.environ.get("KAFKA_RECORDS", "120000")))
    ]
    rows = [(key, record) for _, key, record in sorted(timed, key=lambda row: row[0])]
    with tempfile.TemporaryDirectory() as name, broker_address(Path(name) / "broker") as server:
        bench = Bench(Path(name), server, rows)
        pairs: dict[str, list[Pair]] = {metric: [] for metric in ("read", "append", *JOINS)}
        for number in range(num_rounds):
            bare = bench.read_bare(number)
            pairs["read"].append(Pair(bench.read_ours(number), bare))
            for metric, num_processes in JOINS.items():
                pairs[metric].append(Pair(bench.join(number, num_processes), bare))
            pairs["append"].append(Pair(bench.append_ours(), bench.append_bare()))
        bench.close()
    return [compared(metric, found) for metric, found in pairs.items()]


def compared(metric: str, pairs: Sequence[Pair]) -> Figure:
    """Medians; the ratio is that of the pairs, and what the target is for."""
    ratio = statistics.median(pair.ours / pair.peer for pair in pairs)
    peer = statistics.median(pair.peer for pair in pairs)
    return Figure(
        metric=metric, unit="records/s", ours=statistics.median(pair.ours for pair in pairs),
        peer=peer, peer_name="bare kafka-python", ratio=ratio, target=round(MIN_RATIO * peer),
        ok=ratio >= MIN_RATIO,
    )  # fmt: skip


class Bench:
    """One broker with the records on it, and what reads and sends them."""

    def __init__(self, folder: Path, server: str, rows: Rows) -> None:
        self._folder, self._rows = folder, rows
        self._sent = rows[: len(rows) // 4]  # the package's broker keeps all of it in memory
        # Read and written apart, so that what is read does not grow.
        self._read, self._written = (_kafka(server) for _ in range(2))
        self._log = KafkaLog(self._read, References(folder / "references"))
        self._append_log = KafkaLog(self._written, References(folder / "references"))
        _append_all(self._log, rows)
        _append_all(self._append_log, self._sent)
        self._producer = KafkaProducer(
            bootstrap_servers=[server], acks="all", enable_idempotence=True,
            compression_type=self._written.compression, linger_ms=LINGER_MS,
            batch_size=BATCH_BYTES, max_request_size=self._written.max_record_bytes,
        )  # fmt: skip
        self._encoded = [
            (self._written.topic_prefix + record.TOPIC, key.encode(), encode(record))
            for key, record in self._sent
        ]

    def read_ours(self, number: int) -> float:
        reader = self._log.reader(f"ours-{number}", TOPICS)
        while not reader.poll(1, POLL_S):
            pass
        reader.seek(dict.fromkeys(reader.assignment(), 0))
        speed = self._speed(lambda: len(reader.poll(BATCH_RECORDS, POLL_S)))
        reader.close()
        return speed

    def read_bare(self, number: int) -> float:
        consumer = KafkaConsumer(
            *(self._read.topic_prefix + topic for topic in TOPICS),
            bootstrap_servers=list(self._read.servers),
            group_id=f"{self._read.topic_prefix}bare-{number}",
            auto_offset_reset="earliest", enable_auto_commit=False,
            max_partition_fetch_bytes=FETCH_BYTES,
        )  # fmt: skip

        def poll() -> int:
            polled = consumer.poll(timeout_ms=1_000 * POLL_S, max_records=BATCH_RECORDS)
            return sum(map(len, polled.values()))

        while not poll():
            pass
        consumer.seek_to_beginning()
        speed = self._speed(poll)
        consumer.close(autocommit=False)
        return speed

    def join(self, number: int, num_processes: int) -> float:
        """As signals processes do, from the first record to the last commit to the lake."""
        name = f"join-{number}-{num_processes}"
        settings = Settings(
            workspace=self._folder / name,
            log=LogSettings(kind="kafka", kafka=self._read),
            signals=SignalsSettings(revise_after_s=(), lateness_s=0.0),
        )
        num_traces = sum(isinstance(record, Trace) for _, record in self._rows)
        return join(settings, num_processes, NUM_PARTITIONS, num_traces, name).events_per_s

    def append_ours(self) -> float:
        started = time.perf_counter()
        _append_all(self._append_log, self._sent)
        return len(self._sent) / (time.perf_counter() - started)

    def append_bare(self) -> float:
        started = time.perf_counter()
        for at in range(0, len(self._encoded), APPENDED_RECORDS):
            futures = [
                self._producer.send(topic, key=key, value=value)
                for topic, key, value in self._encoded[at : at + APPENDED_RECORDS]
            ]
            for future in futures:
                future.get(timeout=20)
        return len(self._sent) / (time.perf_counter() - started)

    def _speed(self, poll: Callable[[], int]) -> float:
        """Of a member that has joined, from its first record to the last."""
        num, started = 0, time.perf_counter()
        while num < len(self._rows):
            num += poll()
        if num > len(self._rows):
            raise RuntimeError(f"expected {len(self._rows)} records, got {num}")
        return num / (time.perf_counter() - started)

    def close(self) -> None:
        self._producer.close()
        self._append_log.close()
        self._log.close()


def _kafka(server: str) -> KafkaSettings:
    return KafkaSettings(servers=(server,), topic_prefix=own_prefix(), partitions=NUM_PARTITIONS)


def _append_all(log: KafkaLog, rows: Rows) -> None:
    for at in range(0, len(rows), APPENDED_RECORDS):
        log.append(rows[at : at + APPENDED_RECORDS])
