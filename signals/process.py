"""The signals process: reads traces and feedback, writes episodes and a ledger, until stopped.

At least once towards the log, once in effect: what was read is remembered in the joiner's own
state, and readers drop the rare repeated episode by its id.
"""

import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from signals.joiner import TOPICS, Joiner
from signals.recipe import load_recipe
from signals.state import State
from tendril.log import EventLog, LeaseLost, LogReader, LogUnavailable, SqliteLog
from tendril.records import Episode, Record
from tendril.settings import Settings
from tendril.telemetry import NO_TELEMETRY, Telemetry, setup

GROUP = "signals"
STATE_FILE = Path("signals.db")
POLL_TIMEOUT_S = 0.2
LEDGER_EVERY_S = 2.0
PAUSE_S = 1.0

logger = logging.getLogger(__name__)


def run(settings: Settings, stop: threading.Event) -> None:
    """Join until `stop` is set.

    Raises `LogUnavailable` if log or state cannot be opened, `ValueError` for a bad recipe or a
    state that belongs to another log. Later outages are waited out.
    """
    signals = settings.signals
    recipe = load_recipe(signals.recipe)
    log = SqliteLog(settings.path(settings.log.path))
    state = State(settings.path(STATE_FILE))
    joiner = Joiner(
        state,
        recipe,
        feedback_window_s=signals.feedback_window_s,
        held_out_share=signals.held_out_share,
    )
    reader = log.reader(GROUP, TOPICS)
    telemetry = setup(GROUP, settings.telemetry)
    try:
        refuse_foreign_state(state.path, joiner, log)
        join(log, reader, joiner, stop, batch_records=signals.batch_records, telemetry=telemetry)
    finally:
        telemetry.shutdown()
        reader.close()
        state.close()
        log.close()


def refuse_foreign_state(path: Path, joiner: Joiner, log: EventLog) -> None:
    """Raises `ValueError` if the state has read further than the log reaches."""
    ends = log.end_offsets(TOPICS)
    for place, offset in joiner.offsets().items():
        if offset > ends.get(place, 0):
            raise ValueError(
                f"{path}: expected offset <= {ends.get(place, 0)} (the end of the log's "
                f"{place.topic}), got {offset}. The log is another one or was cut; remove the "
                f"state file to join again from the log's beginning"
            )


def join(
    log: EventLog,
    reader: LogReader,
    joiner: Joiner,
    stop: threading.Event,
    *,
    batch_records: int,
    pause_s: float = PAUSE_S,
    telemetry: Telemetry = NO_TELEMETRY,
) -> None:
    """Claim the input, join it, and start over after an outage or another reader's turn."""
    while not stop.is_set():
        try:
            reader.seek(joiner.offsets())
            reader.commit(joiner.offsets())  # fails while another reader holds the input
            join_while_owner(
                log, reader, joiner, stop, batch_records=batch_records, telemetry=telemetry
            )
        except LeaseLost as lost:
            logger.info("standing by: %s", lost)
            stop.wait(pause_s)
        except LogUnavailable as outage:
            logger.warning("nothing is lost, trying again in %s s: %s", pause_s, outage)
            stop.wait(pause_s)


def join_while_owner(
    log: EventLog,
    reader: LogReader,
    joiner: Joiner,
    stop: threading.Event,
    *,
    batch_records: int,
    telemetry: Telemetry = NO_TELEMETRY,
) -> None:
    """Poll, join, publish, until `stop` is set. Raises `LeaseLost` and `LogUnavailable`."""
    ledger_at, more = 0.0, False
    while not stop.is_set():
        polled_at = time.time()
        records = reader.poll(batch_records, 0.0 if more else POLL_TIMEOUT_S)
        # Fails unless the input is still ours: otherwise an empty poll does not mean caught up.
        reader.commit(joiner.offsets())
        more = joiner.step(records, now=polled_at, caught_up=len(records) < batch_records)
        report(telemetry, joiner.publish(log))
        if polled_at - ledger_at >= LEDGER_EVERY_S:
            ledger = joiner.ledger(polled_at)
            telemetry.gauge("tendril.signals.pending", ledger.outcomes["traces"].get("pending", 0))
            log.append([(GROUP, ledger)])
            ledger_at = polled_at
    log.append([(GROUP, joiner.ledger(time.time()))])


def report(telemetry: Telemetry, published: Iterable[Record]) -> None:
    """Count what was published, and how it was rewarded."""
    for record in published:
        if isinstance(record, Episode):
            telemetry.count("tendril.signals.episodes", outcome=record.outcome)
            if record.reward is not None:
                telemetry.record("tendril.signals.reward", record.reward)
