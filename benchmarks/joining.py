"""The join by processes of their own, as `tendril signals` runs it, over any log.

The clock starts when every partition has an owner, and stops with the last commit to the lake.
"""

import gc
import math
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
from tendril.settings import Settings, SignalsSettings

POLL_S = 0.2
FAR_S = 100 * 3_600.0
"""After which every window of the benchmarks is over."""
TIMEOUT_S = 3_600.0
SETTLE_S = 3.0
"""A share that stayed the same for so long is no step of a rebalance any more."""


class Run(NamedTuple):
    """One pass over the log by all processes."""

    events_per_s: float
    late_slowdown: float
    """See `slowdown`; that of the process where it is largest."""
    growth_mib: float
    """Of the processes' largest resident memory from half of the log on, summed."""


class Polled(NamedTuple):
    """How things stood after one poll and what followed from it."""

    at: float
    """By the machine's monotonic clock."""
    num_read: int
    newest_at: float
    """Of the log's times, the newest that was read."""
    resident_mib: float


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


def join(
    settings: Settings,
    num_processes: int,
    num_partitions: int,
    num_traces: int,
    group: str = "join",
) -> Run:
    """From the log's beginning to its end. Raises `RuntimeError` unless every trace was joined."""
    context, share = multiprocessing.get_context("spawn"), num_partitions // num_processes
    with context.Manager() as manager, ProcessPoolExecutor(num_processes, context) as pool:
        together = manager.Barrier(num_processes)
        futures = [
            pool.submit(_work, settings, group, share, together) for _ in range(num_processes)
        ]
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


def _work(settings: Settings, group: str, num_partitions: int, together: Barrier) -> Worked:
    gc.set_threshold(GC_THRESHOLD)
    log = open_log(settings)
    reader = log.reader(group, TOPICS)
    shift = Shift(reader, Workshop(settings, log, open_lake(settings)), Decided())
    settled_at = math.inf
    while time.monotonic() < settled_at + SETTLE_S:
        shift.follow()
        has_share = len(shift.extractors) == num_partitions
        settled_at = min(settled_at, time.monotonic()) if has_share else math.inf
        time.sleep(POLL_S)
    together.wait(TIMEOUT_S)
    worked = _timed(reader, shift, log.end_offsets(TOPICS), settings.signals)
    together.wait(TIMEOUT_S)  # who leaves moves partitions
    shift.close()
    reader.close()
    log.close()
    return worked


def _timed(reader: LogReader, shift: Shift, ends: Offsets, signals: SignalsSettings) -> Worked:
    started = time.perf_counter()
    polls: list[Polled] = []
    wanted = {place: end for place, end in ends.items() if place.partition in shift.extractors}
    while any(reader.positions()[place] < end for place, end in wanted.items()):
        records = reader.poll(signals.batch_records, POLL_S)
        _turn(shift, records, now=0.0)
        reader.commit(shift.offsets())
        newest_at = max((record.appended_at for record in records), default=0.0)
        polls.append(Polled(time.perf_counter(), len(records), newest_at, _max_resident_mib()))
    _turn(shift, [], now=time.time() + FAR_S)
    shift.flush()
    reader.commit(shift.offsets())
    ended = time.perf_counter()
    ledgers = [extractor.ledger() for extractor in shift.extractors.values()]
    return Worked(
        started=started,
        ended=ended,
        num_read=sum(sum(ledger.read.values()) for ledger in ledgers),
        num_joined=sum(ledger.outcomes["traces"]["joined"] for ledger in ledgers),
        is_balanced=all(ledger.balanced for ledger in ledgers),
        late_slowdown=slowdown(polls, signals.feedback_window_s),
        growth_mib=polls[-1].resident_mib - polls[len(polls) // 2].resident_mib,
    )


def slowdown(polls: Sequence[Polled], window_s: float) -> float:
    """Seconds a record in the second half over those in the first, from when windows end.

    Before that nothing is judged, which is other work. NaN for too short a log.
    """
    begun_at = polls[0].newest_at + window_s
    steady = [poll for poll in polls if poll.newest_at >= begun_at]
    half = len(steady) // 2
    if half < 2:
        return math.nan
    halves = (steady[: half + 1], steady[half:])
    first, second = (
        (part[-1].at - part[0].at) / sum(poll.num_read for poll in part[1:]) for part in halves
    )
    return second / first


def _turn(shift: Shift, records: Sequence[LogRecord], *, now: float) -> None:
    """One a partition, and more until nothing is due; `now`: 0 while there is more to read."""
    for number, extractor in shift.extractors.items():
        mine = [record for record in records if record.partition == number]
        while extractor.turn(mine, now=now, caught_up=now > 0).more:
            mine = []


def _max_resident_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 1024)
