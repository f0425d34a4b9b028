"""What was decided beside the traces: consents, quarantines and fits, from the log's beginning."""

from signals.fitted import Fits, FitsFollower
from tendril.log import EventLog, LogRecord, drain
from tendril.quarantine import QuarantineFollower, Quarantines
from tendril.records import Consent


class Decided:
    """What a look asks, as of its moment; who owns a joiner takes in what is new before a step."""

    def __init__(self, quarantines: Quarantines | None = None, fits: Fits | None = None) -> None:
        self.quarantines = Quarantines() if quarantines is None else quarantines
        self.fits = Fits() if fits is None else fits


class Decisions:
    """Follows the topics, beside all groups: every partition's joiner wants all of them."""

    def __init__(self, log: EventLog) -> None:
        self._consents = log.reader(None, (Consent.TOPIC,))
        self._fits, self._quarantines = FitsFollower(log), QuarantineFollower(log)
        self.consents: list[LogRecord] = []
        self.decided = Decided(self._quarantines.quarantines, self._fits.fits)

    def poll(self) -> list[LogRecord]:
        """Follow all; the consents that are new. Raises `LogUnavailable`."""
        self._quarantines.follow()
        self._fits.follow()
        new = list(drain(self._consents))
        self.consents += new
        return new

    def close(self) -> None:
        self._consents.close()
        self._fits.close()
        self._quarantines.close()
