"""The signals process: reads traces and feedback, writes episodes, lake rows and a ledger.

At least once towards the log, once in effect: what was read is remembered in each partition's own
state, and readers drop the rare repeated episode by its id. Partitions come and go with the
consumer group; whatever fails, all of them are opened again from what is durable.
"""

import gc
import logging
import threading
import time
from collections.abc import Iterable, Mapping

from signals.counts import KINDS
from signals.decisions import Decided, Decisions
from signals.extractor import Extractor
from signals.housekeeping import Housekeeping
from signals.joiner import TOPICS
from signals.workshop import Workshop
from tendril.lake import open_lake
from tendril.lake.results import LakeUnavailable, OffsetsMoved
from tendril.log import (
    EventLog,
    LeaseLost,
    LogReader,
    LogUnavailable,
    Offsets,
    open_log,
)
from tendril.records import Episode, Ledger, Record
from tendril.settings import Settings
from tendril.telemetry import NO_TELEMETRY, Telemetry, setup

GROUP = "signals"
POLL_TIMEOUT_S = 0.2
LEDGER_EVERY_S = 2.0
PAUSE_S = 1.0
GC_THRESHOLD = 200_000
"""Records make no cycles; looking through a batch of them for some took a quarter of the time."""

logger = logging.getLogger(__name__)


def run(settings: Settings, stop: threading.Event) -> None:
    """Join until `stop` is set.

    Raises `LogUnavailable` if the log cannot be opened, `ValueError` for a bad recipe or a state
    that belongs to another log. Later outages are waited out.
    """
    gc.set_threshold(GC_THRESHOLD)
    log = open_log(settings)
    workshop = Workshop(settings, log, open_lake(settings))
    telemetry = setup(GROUP, settings.telemetry)
    reader, housekeeping = log.reader(GROUP, TOPICS), Housekeeping(settings, log, telemetry)
    housekeeping.start()
    try:
        join(log, reader, workshop, stop, on_duty=housekeeping.on_duty, telemetry=telemetry)
    finally:
        housekeeping.close()
        telemetry.shutdown()
        reader.close()
        log.close()


class Shift:
    """The partitions that are this process's now, by number."""

    def __init__(self, reader: LogReader, workshop: Workshop, decided: Decided) -> None:
        self._reader, self._workshop, self._decided = reader, workshop, decided
        self._open: dict[int, Extractor] = {}

    @property
    def extractors(self) -> Mapping[int, Extractor]:
        return self._open

    def follow(self) -> frozenset[int]:
        """Open what the group gave to this process, close what it took; the numbers that are new.

        What was polled of those came from elsewhere: they are read again from their own offsets.
        """
        numbers = {place.partition for place in self._reader.assignment()}
        for number in self._open.keys() - numbers:
            self._open.pop(number).close()
        new = frozenset(numbers - self._open.keys())
        for number in sorted(new):
            self._open[number] = self._workshop.open(number, self._decided)
            self._reader.seek(self._open[number].offsets())
        return new

    def flush(self) -> None:
        """Write what has gathered for the lake."""
        for extractor in self._open.values():
            extractor.flush()

    def offsets(self) -> Offsets:
        return {p: n for extractor in self._open.values() for p, n in extractor.offsets().items()}

    def close(self) -> None:
        """Close all; those that cannot write any more leave it to whoever opens them next."""
        for number in list(self._open):
            try:
                self._open.pop(number).close()
            except (LogUnavailable, LakeUnavailable, OffsetsMoved) as error:
                logger.warning("partition %d: left to the next one: %s", number, error)


def join(
    log: EventLog,
    reader: LogReader,
    workshop: Workshop,
    stop: threading.Event,
    *,
    pause_s: float = PAUSE_S,
    on_duty: threading.Event | None = None,
    telemetry: Telemetry = NO_TELEMETRY,
) -> None:
    """Work until `stop`, and start over after an outage or another reader's turn.

    `on_duty` is set while partition 0 is this process's.
    """
    while not stop.is_set():
        decisions = Decisions(log)
        shift = Shift(reader, workshop, decisions.decided)
        try:
            work(log, reader, shift, decisions, stop, workshop.settings, telemetry, on_duty)
        except LeaseLost as lost:
            logger.info("standing by: %s", lost)
            stop.wait(pause_s)
        except (LogUnavailable, LakeUnavailable, OffsetsMoved) as outage:
            logger.warning("nothing is lost, trying again in %s s: %s", pause_s, outage)
            stop.wait(pause_s)
        finally:
            if on_duty is not None:
                on_duty.clear()
            shift.close()
            decisions.close()


def work(
    log: EventLog,
    reader: LogReader,
    shift: Shift,
    decisions: Decisions,
    stop: threading.Event,
    settings: Settings,
    telemetry: Telemetry,
    on_duty: threading.Event | None = None,
) -> None:
    """Poll, join, publish, until `stop` is set. Raises `LeaseLost` and what the outages raise."""
    ledger_at, more = 0.0, False
    batch_records = settings.signals.batch_records
    while not stop.is_set():
        polled_at = time.time()
        ends = log.end_offsets(TOPICS)
        records = reader.poll(batch_records, 0.0 if more else POLL_TIMEOUT_S)
        new = shift.follow()
        # Fails unless the input is still ours: otherwise an empty poll does not mean caught up.
        reader.commit(shift.offsets())
        if on_duty is not None:
            (on_duty.set if 0 in shift.extractors else on_duty.clear)()
        positions, more, decided = reader.positions(), False, decisions.poll()
        report_lag(telemetry, ends, positions)
        for number, extractor in shift.extractors.items():
            mine = [r for r in records if r.partition == number and number not in new]
            places = [place for place in ends if place.partition == number]
            caught_up = all(positions.get(place, -1) >= ends[place] for place in places)
            turn = extractor.turn(
                mine,
                now=polled_at,
                caught_up=caught_up,
                consents=decisions.consents if number in new else decided,
            )
            report(telemetry, turn.published)
            more |= turn.more
        if polled_at - ledger_at >= LEDGER_EVERY_S and shift.extractors:
            log.append([(GROUP, ledger) for ledger in ledgers(shift, telemetry)])
            ledger_at = polled_at
    shift.flush()
    reader.commit(shift.offsets())
    log.append([(GROUP, ledger) for ledger in ledgers(shift, telemetry)])


def ledgers(shift: Shift, telemetry: Telemetry) -> list[Ledger]:
    """One a partition."""
    found = [extractor.ledger() for extractor in shift.extractors.values()]
    pending = sum(ledger.outcomes[KINDS[0]].get("pending", 0) for ledger in found)
    telemetry.gauge("tendril.signals.pending", pending)
    return found


def report(telemetry: Telemetry, published: Iterable[Record]) -> None:
    """Count what was published, and how it was rewarded."""
    for record in published:
        if isinstance(record, Episode) and record.maturity == "final":
            telemetry.count("tendril.signals.episodes", outcome=record.outcome)
            if record.reward is not None:
                telemetry.record("tendril.signals.reward", record.reward)


def report_lag(telemetry: Telemetry, ends: Offsets, positions: Offsets) -> None:
    """Say how far behind this process is, by topic: a partition that left is no longer its own."""
    for topic in TOPICS:
        behind = (ends[p] - offset for p, offset in positions.items() if p.topic == topic)
        lag = sum(max(0, n) for n in behind)  # what came after the look at the end was read too
        telemetry.gauge("tendril.log.lag", lag, group=GROUP, topic=topic)
