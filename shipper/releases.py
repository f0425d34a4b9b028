"""The state of every version: the fold of `Release` events.

Live versions form a stack. A promotion pushes, a rollback takes off everything above its target, so
going back twice goes back twice. Repeats of an event change nothing. Version 1 is the bootstrap.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from tendril.log import EventLog, TopicPartition
from tendril.records import EvalReport, InvalidRecord, Record, Release, ReleaseState, decode

R = TypeVar("R", bound=Record)
RELEASES_KEY = "releases"
"""One log key for all, so that they keep one order."""
READ_TIMEOUT_S = 10.0
BATCH_RECORDS = 500


class ReleaseHistory:
    """What has happened to which version, in log order."""

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        self._events: list[Release] = []
        self._states: dict[int, ReleaseState] = {}
        self._served: list[int] = []
        for release in releases:
            self.add(release)

    def add(self, release: Release) -> None:
        """Fold in the next event."""
        self._events.append(release)
        self._states[release.policy_version] = release.state
        if release.state == "promoted":
            self._serve(release.policy_version)
        elif release.state == "rolled_back" and release.target_version is not None:
            self._go_back(release.target_version)

    def _serve(self, version: int) -> None:
        if not self._served or self._served[-1] != version:
            self._served.append(version)

    def _go_back(self, target: int) -> None:
        while target in self._served and self._served[-1] != target:
            self._states[self._served.pop()] = "rolled_back"
        self._serve(target)
        self._states[target] = "promoted"

    @property
    def events(self) -> tuple[Release, ...]:
        return tuple(self._events)

    @property
    def live(self) -> int:
        """The version in service. Raises `LookupError` before the bootstrap."""
        if not self._served:
            raise LookupError("no version was ever promoted: bootstrap the store first")
        return self._served[-1]

    @property
    def previous(self) -> int | None:
        """Where a rollback without a target goes."""
        return self._served[-2] if len(self._served) > 1 else None

    @property
    def served(self) -> tuple[int, ...]:
        """The stack: what a rollback can go back to, then the live version last."""
        return tuple(self._served)

    def state_of(self, version: int) -> ReleaseState | None:
        """None for a version without events."""
        return self._states.get(version)

    def evidence_for(self, version: int) -> EvalReport | None:
        """The newest gate report about it."""
        reports = (e.evidence for e in reversed(self._events) if e.policy_version == version)
        return next((report for report in reports if report is not None), None)


def read_history(log: EventLog) -> ReleaseHistory:
    """The history up to now. Raises `LogUnavailable`, or `TimeoutError` if the log is silent."""
    return ReleaseHistory(read_records(log, Release))


def read_records(log: EventLog, record_type: type[R]) -> Iterator[R]:
    """A small topic up to now; the ship loop moves what nobody can read to `dead_letters`."""
    for value in read_topic(log, record_type.TOPIC):
        with suppress(InvalidRecord):
            yield decode(record_type, value)


def read_topic(log: EventLog, topic: str) -> list[bytes]:
    """Every record of a small topic up to now, without being a member of any lasting group."""
    missing = {place: end for place, end in log.end_offsets([topic]).items() if end > 0}
    values: list[bytes] = []
    reader = log.reader(None, [topic])
    try:
        while missing:
            batch = reader.poll(BATCH_RECORDS, READ_TIMEOUT_S)
            if not batch:
                raise TimeoutError(f"topic {topic}: no answer in {READ_TIMEOUT_S:g} s")
            for record in batch:
                values.append(record.value)
                place = TopicPartition(record.topic, record.partition)
                if record.offset + 1 >= missing.get(place, 0):
                    missing.pop(place, None)
    finally:
        reader.close()
    return values
