"""What was decided beside the traces: consents, quarantines and fits, from the log's beginning."""

import contextlib

from signals.fitted import Fits
from tendril.log import EventLog, LogRecord, drain
from tendril.quarantine import QuarantineFollower, Quarantines
from tendril.records import Consent, InvalidRecord, RewardFit, decode


class Decided:
    """What a look asks, as of its moment; who owns a joiner takes in what is new before a step."""

    def __init__(self, quarantines: Quarantines | None = None, fits: Fits | None = None) -> None:
        self.quarantines = Quarantines() if quarantines is None else quarantines
        self.fits = Fits() if fits is None else fits


class Decisions:
    """Follows the topics, beside all groups: every partition's joiner wants all of them."""

    def __init__(self, log: EventLog) -> None:
        self._consents = log.reader(None, (Consent.TOPIC,))
        self._fits = log.reader(None, (RewardFit.TOPIC,))
        self._quarantines = QuarantineFollower(log)
        self.consents: list[LogRecord] = []
        self.decided = Decided(self._quarantines.quarantines)

    def poll(self) -> list[LogRecord]:
        """Follow all; the consents that are new. Raises `LogUnavailable`."""
        self._quarantines.follow()
        for record in drain(self._fits):
            with contextlib.suppress(InvalidRecord):  # it corrects nothing
                fit = decode(RewardFit, record.value)
                self.decided.fits.take(fit, logged_at=record.appended_at)
        new = list(drain(self._consents))
        self.consents += new
        return new

    def close(self) -> None:
        self._consents.close()
        self._fits.close()
        self._quarantines.close()
