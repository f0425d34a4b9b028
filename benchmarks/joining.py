"""The join by processes of their own, as `tendril signals` runs it, over any log.

The clock starts when every partition has an owner, and stops with the last commit to the lake.
"""

import gc
import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from threading import Barrier
from typing import NamedTuple

from signals.decisions import Decided
from signals.joiner import TOPICS
from signals.process import GC_THRESHOLD, Shift
from signals.workshop import Workshop
from tendril.lake import open_lake
from tendril.log import LogReader, LogRecord, Offsets, open_log
from tendril.settings import Settings

POLL_S = 0.2
FAR_S = 100 * 3_600.0
"""After which every window of the benchmarks is over."""
START_TIMEOUT_S = 60.0


class Run(NamedTuple):
    """One pass over the log by all processes."""

    events_per_s: float
    late_slowdown: float
    """Seconds a record in the last third over those in the first; the slowest process counts."""
    growth_mib: float
    """Of the processes' largest resident memory from half of the log on, summed."""


class Worked(NamedTuple):
    """What one process did; times are of the machine's monotonic clock."""

    started: float
    ended: float
    num_read: int
    num_joined: int
    """Traces."""
    is_balanced: bool
    late_slowdown: float
    growth_mib: float


def join(settings: Settings, num_processes: int, num_partitions: int, num_traces: int) -> Run:
    """From the log's beginning to its end. Raises `RuntimeError` unless every trace was joined."""
    context, share = multiprocessing.get_context("spawn"), num_partitions // num_processes
    with context.Manager() as manager, ProcessPoolExecutor(num_processes, context) as pool:
        start = manager.Barrier(num_processes)
        futures = [pool.submit(_work, settings, share, start) for _ in range(num_processes)]
        done = [future.result() for future in futures]
    num_joined = sum(one.num_joined for one in done)
    if num_joined != num_traces or not all(one.is_balanced for one in done):
        raise RuntimeError(f"expected {num_traces} traces joined, got {done}")
    seconds = max(one.ended for one in done) - min(one.started for one in done)
    return Run(
        sum(one.num_read for one in done) / seconds,
        max(one.late_slowdown for one in done),
        sum(one.growth_mib for one in done),
    )


def _work(settings: Settings, num_partitions: int, start: Barrier) -> Worked:
    gc.set_threshold(GC_THRESHOLD)
    log = open_log(settings)
    reader = log.reader("join", TOPICS)
    shift = Shift(reader, Workshop(settings, log, open_lake(settings)), Decided())
    while len(shift.extractors) != num_partitions:
        shift.follow()
        time.sleep(POLL_S)
    start.wait(START_TIMEOUT_S)
    worked = _timed(reader, shift, log.end_offsets(TOPICS), settings.signals.batch_records)
    shift.close()
    reader.close()
    log.close()
    return worked


def _timed(reader: LogReader, shift: Shift, ends: Offsets, batch_records: int) -> Worked:
    started = time.perf_counter()
    times, resident = [started], []
    wanted = {place: end for place, end in ends.items() if place.partition in shift.extractors}
    while any(reader.positions()[place] < end for place, end in wanted.items()):
        _turn(shift, reader.poll(batch_records, POLL_S), now=0.0)
        reader.commit(shift.offsets())
        times.append(time.perf_counter())
        resident.append(_max_resident_mib())
    _turn(shift, [], now=time.time() + FAR_S)
    shift.flush()
    reader.commit(shift.offsets())
    ended = time.perf_counter()
    ledgers = [extractor.ledger() for extractor in shift.extractors.values()]
    third = (len(times) - 1) // 3
    return Worked(
        started=started,
        ended=ended,
        num_read=sum(sum(ledger.read.values()) for ledger in ledgers),
        num_joined=sum(ledger.outcomes["traces"]["joined"] for ledger in ledgers),
        is_balanced=all(ledger.balanced for ledger in ledgers),
        late_slowdown=(times[-1] - times[-1 - third]) / (times[third] - times[0]),
        growth_mib=resident[-1] - resident[len(resident) // 2],
    )


def _turn(shift: Shift, records: Sequence[LogRecord], *, now: float) -> None:
    """One a partition, and more until nothing is due; `now`: 0 while there is more to read."""
    for number, extractor in shift.extractors.items():
        mine = [record for record in records if record.partition == number]
        while extractor.turn(mine, now=now, caught_up=now > 0).more:
            mine = []


def _max_resident_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 1024)
