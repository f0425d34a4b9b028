"""What people and detectors have decided: consents and quarantines, from the log's beginning."""

from tendril.log import EventLog, LogRecord, drain
from tendril.quarantine import QuarantineFollower
from tendril.records import Consent


class Decisions:
    """Both topics, beside all groups: every partition's joiner wants all of them."""

    def __init__(self, log: EventLog) -> None:
        self._reader, self._follower = log.reader(None, (Consent.TOPIC,)), QuarantineFollower(log)
        self.consents: list[LogRecord] = []
        self.quarantines = self._follower.quarantines

    def poll(self) -> list[LogRecord]:
        """Follow both; the consents that are new. Raises `LogUnavailable`."""
        self._follower.follow()
        new = list(drain(self._reader))
        self.consents += new
        return new

    def close(self) -> None:
        self._reader.close()
        self._follower.close()
