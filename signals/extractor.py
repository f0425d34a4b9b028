"""One partition's work: what was polled is joined, published, and written to the lake.

The joiner's state says what has been read, the outbox what has to be sent. Episodes go to the log
at once, to the lake with its next commit, and leave the outbox when both have them.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from signals.intake import take
from signals.joiner import Joiner
from signals.lake_writer import LakeWriter
from signals.outbox import Outgoing
from signals.state import State
from tendril.log import EventLog, LogRecord, Offsets
from tendril.records import Ledger, Record

MAX_SENT = 2_000


class Turn(NamedTuple):
    """What one turn has done."""

    more: bool
    """More is due already."""
    published: Sequence[Record]


class Extractor:
    """Owns one partition's state while the reader's group says that it is this process's."""

    def __init__(self, log: EventLog, state: State, joiner: Joiner, lake: LakeWriter) -> None:
        self._log, self._state, self._joiner, self._lake = log, state, joiner, lake
        self._last_sent = joiner.logged
        self._send_leftovers()

    def offsets(self) -> Offsets:
        """From where on records are wanted; some of them may have been joined already."""
        joined, stored = self._joiner.offsets(), self._lake.offsets()
        return {place: min(offset, stored[place]) for place, offset in joined.items()}

    def turn(
        self,
        records: Sequence[LogRecord],
        *,
        now: float,
        caught_up: bool,
        consents: Sequence[LogRecord] = (),
    ) -> Turn:
        """Take `records` in; for the rest see `Joiner.step`."""
        batch = take(records)
        more = self._joiner.step(batch, now=now, caught_up=caught_up, consents=consents)
        outgoing = self._joiner.take_outgoing()
        self._publish(outgoing)
        self._lake.add(batch)
        if self._lake.is_due():
            self.flush()
        return Turn(more, [record for _, _, record in outgoing])

    def ledger(self) -> Ledger:
        """What was read since the state began, and what became of it."""
        return self._joiner.ledger(time.time())

    def flush(self) -> None:
        """Write what has gathered for the lake."""
        self._lake.commit()
        self._joiner.sent(self._last_sent)

    def close(self) -> None:
        """Write what has gathered, and let go of the state."""
        try:
            self.flush()
            self._lake.write_ledger(self.ledger())
        finally:
            self._state.close()

    def _send_leftovers(self) -> None:
        """What an earlier process decided and may not have sent."""
        seen = 0
        while outgoing := self._joiner.outbox(after=seen, limit=MAX_SENT):
            self._publish(outgoing)
            seen = outgoing[-1][0]
        self.flush()

    def _publish(self, outgoing: Sequence[Outgoing]) -> None:
        unsent = [item for item in outgoing if item[0] > self._last_sent]
        for start in range(0, len(unsent), MAX_SENT):
            page = unsent[start : start + MAX_SENT]
            self._log.append([(key, record) for _, key, record in page])
            self._last_sent = page[-1][0]
            self._joiner.note_logged(self._last_sent)
        self._lake.add_episodes(outgoing)
