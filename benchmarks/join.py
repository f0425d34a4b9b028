"""Join and reward: from the embedded log to Delta tables, by signals processes, dedup on.

A hot user makes a tenth of the traces; each trace has three events, one event in fifty comes twice.
Peer: one DuckDB query that joins the same records, laid out as Parquet beforehand, without state,
rewards or a promise: the floor. JOIN_EVENTS in the environment (default 400000) sets how many,
JOIN_WINDOWS (1,6,24) the windows in hours, JOIN_PROCESSES (1,2) how many processes share the work,
a partition each; the log spans 30 hours whatever the window. Another peer, the stream library
bytewax, runs where JOIN_BYTEWAX names a Python that has it and msgspec.
"""

import heapq
import json
import math
import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, product
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.joining import Run, join
from signals.joiner import TOPICS
from tendril.ids import new_id
from tendril.lake import lake_root
from tendril.log import SqliteLog
from tendril.log.sqlite_file import transaction
from tendril.records import (
    Feedback,
    FeedbackType,
    Latency,
    PolicySpan,
    Record,
    Sampling,
    Trace,
    encode,
)
from tendril.settings import LakeSettings, LogSettings, Settings, SignalsSettings

EVENTS: tuple[tuple[FeedbackType, float], ...] = (
    ("suggestion.shown", 0.2), ("suggestion.accepted", 1.5), ("retention.measured", 31.0),
)  # fmt: skip
START, SPAN_S = 1_790_000_000.0, 30 * 3_600.0
NUM_PROMPT_TOKENS, NUM_TOKENS = 40, 12
NUM_USERS, NUM_SESSIONS = 2_000, 5_000
HOT_SHARE, REPEATED_SHARE = 0.1, 0.02
BATCH_RECORDS = 10_000
LATEST_S = 60.0
Row = tuple[float, str, Record]
"""Time, key and record."""
MIN_EVENTS_PER_S = 50_000.0
JOIN = """
SELECT t.trace_id, count(DISTINCT f.event_id) FROM read_parquet('{traces}/day=*/**/*.parquet') t
LEFT JOIN read_parquet('{feedback}/day=*/**/*.parquet') f ON f.trace_id = t.trace_id
    AND f.appended_at < t.appended_at + 86400 GROUP BY ALL
"""


def run() -> list[Figure]:
    """About a minute for each window and number of processes on two cores."""
    num = int(os.environ.get("JOIN_EVENTS", "400000"))
    hours = [float(h) for h in os.environ.get("JOIN_WINDOWS", "1,6,24").split(",")]
    processes = [int(n) for n in os.environ.get("JOIN_PROCESSES", "1,2").split(",")]
    figures = []
    for window_h, num_processes in product(hours, processes):
        with tempfile.TemporaryDirectory() as name:
            settings = settings_of(Path(name), window_h * 3_600, num_processes)
            fill(settings, num)
            found = join(settings, num_processes, num_processes, num_traces_of(num))
            floor, bytewax = floor_of(settings, num), bytewax_of(settings, window_h * 3_600)
        case = f"{window_h:g} h window, {num_processes} process{'es' * (num_processes > 1)}"
        figures += _figures(case, found, floor)
        if bytewax is not None:
            figures.append(_beside_bytewax(case, found, bytewax))
    return figures


def settings_of(folder: Path, window_s: float, num_partitions: int = 1) -> Settings:
    return Settings(
        workspace=folder,
        log=LogSettings(partitions=num_partitions),
        signals=SignalsSettings(feedback_window_s=window_s, revise_after_s=(), lateness_s=0.0),
        lake=LakeSettings(commit_interval_s=1.0),
    )


def num_traces_of(num: int) -> int:
    """Among `num` records."""
    return num // (1 + len(EVENTS))


def fill(settings: Settings, num: int) -> None:
    """Records straight into the log's table, at the times of a day and a quarter."""
    log = SqliteLog(settings.path(settings.log.path), settings.log.partitions)
    for topic in TOPICS:
        num_rows: Counter[str] = Counter()
        with transaction(log._connection) as db:
            for some in batched(in_order(records_of(topic, num)), BATCH_RECORDS):
                rows = []
                for at, key, record in some:
                    name = log._sequence(topic, key)
                    rows.append((name, num_rows[name], key, encode(record), at))
                    num_rows[name] += 1
                db.executemany("INSERT INTO records VALUES (?,?,?,?,?)", rows)
            db.executemany("INSERT INTO topics VALUES (?,?)", num_rows.items())
    log.close()


def in_order(rows: Iterable[Row]) -> Iterator[Row]:
    """By time, for rows that are at most `LATEST_S` late: a long log need not fit into memory."""
    waiting: list[tuple[float, int, Row]] = []
    for number, row in enumerate(rows):
        heapq.heappush(waiting, (row[0], number, row))
        while waiting[0][0] < row[0] - LATEST_S:
            yield heapq.heappop(waiting)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]


def batched(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Lists of `size`, the last one shorter."""
    rest = iter(rows)
    while some := list(islice(rest, size)):
        yield some


def records_of(topic: str, num: int) -> Iterator[Row]:
    """What of `num` records this topic gets, nearly in order."""
    rng = random.Random(0)  # the same for both topics
    num_traces = num_traces_of(num)
    for i in range(num_traces):
        at = START + SPAN_S * i / num_traces
        trace = _trace(rng, at, f"{int(at * 1000):012x}"[:8] + f"-{i:08d}")
        if topic == Trace.TOPIC:
            yield at, trace.session_id, trace
            continue
        for seq, (kind, after_s) in enumerate(EVENTS):
            event = _event(trace, kind, seq, at + after_s)
            yield at + after_s, trace.session_id, event
            if hash((i, seq)) % 1_000 < REPEATED_SHARE * 1_000:
                yield at + after_s + 0.1, trace.session_id, event


def _trace(rng: random.Random, at: float, trace_id: str) -> Trace:
    is_hot = rng.random() < HOT_SHARE
    return Trace(
        trace_id=trace_id, session_id=f"s{rng.randrange(NUM_SESSIONS)}", session_origin="given",
        tenant="acme", user_key="hot" if is_hot else f"u{rng.randrange(NUM_USERS)}",
        route="suggestion", served_at=at, model="tendril", tokenizer_digest="t",
        prompt_token_ids=tuple(rng.randrange(8_000) for _ in range(NUM_PROMPT_TOKENS)),
        completion_token_ids=tuple(rng.randrange(8_000) for _ in range(NUM_TOKENS)),
        behavior_logprobs=tuple(-rng.random() for _ in range(NUM_TOKENS)),
        policy_spans=(PolicySpan(policy_version=1, num_tokens=NUM_TOKENS),),
        token_bytes=(3,) * NUM_TOKENS, sampling=Sampling(temperature=1.0, max_tokens=NUM_TOKENS),
        finish_reason="length", latency=Latency(queue_s=0.0, first_token_s=0.01, total_s=0.02),
    )  # fmt: skip


def _event(trace: Trace, kind: FeedbackType, seq: int, at: float) -> Feedback:
    measured = kind == "retention.measured"
    return Feedback(
        event_id=new_id(), trace_id=trace.trace_id, session_id=trace.session_id,
        tenant=trace.tenant, user_key=trace.user_key, type=kind, client_seq=seq, client_time=at,
        ingested_at=at, value=0.9 if measured else None, horizon_s=30.0 if measured else None,
    )  # fmt: skip


def floor_of(settings: Settings, num: int) -> float:
    """Events a second of the batch query over the lake's own files."""
    import duckdb

    root = lake_root(settings)
    started = time.perf_counter()
    with duckdb.connect() as connection:
        connection.execute(JOIN.format(traces=f"{root}/traces", feedback=f"{root}/feedback"))
        connection.fetchall()
    return num / (time.perf_counter() - started)


def bytewax_of(settings: Settings, window_s: float) -> float | None:
    """Events a second of the same join in bytewax; None unless JOIN_BYTEWAX names a Python."""
    python = os.environ.get("JOIN_BYTEWAX")
    if not python:
        return None
    script = Path(__file__).with_name("bytewax_join.py")
    log = settings.path(settings.log.path)
    done = subprocess.run(
        [python, str(script), str(log), str(window_s)], check=True, capture_output=True, text=True
    )
    return float(json.loads(done.stdout)["events_per_s"])


def _beside_bytewax(case: str, found: Run, bytewax: float) -> Figure:
    return Figure(
        metric=f"{case}: log to Delta, rewards and durable state included", unit="events/s",
        ours=found.events_per_s, peer=bytewax, peer_name="bytewax, joining in memory alone",
        ratio=found.events_per_s / bytewax,
    )  # fmt: skip


def _figures(case: str, found: Run, floor: float) -> list[Figure]:
    figures = [
        Figure(
            metric=f"{case}: log to Delta", unit="events/s", ours=found.events_per_s, peer=floor,
            peer_name="one DuckDB query, no rewards", ratio=found.events_per_s / floor,
            target=MIN_EVENTS_PER_S, ok=found.events_per_s >= MIN_EVENTS_PER_S,
        ),
        Figure(
            metric=f"{case}: growth of memory in the second half", unit="MiB",
            ours=found.growth_mib,
        ),
    ]  # fmt: skip
    if not math.isnan(found.late_slowdown):
        metric = f"{case}: time an event, second half over first"
        figures.append(Figure(metric=metric, unit="ratio", ours=found.late_slowdown))
    return figures
