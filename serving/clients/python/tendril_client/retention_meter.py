"""Measures accepted texts when their time has come, 30 s and 5 min after acceptance.

The meter has no thread of its own: call `measure_due` from the editor's timer or event loop, or
use `start` for a thread that does.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tendril_client.retention import measure_retention
from tendril_client.suggestion import Suggestion

HORIZONS_S = (30.0, 300.0)


@dataclass(order=True, slots=True)
class _Appointment:
    due_s: float
    order: int
    horizon_s: float = field(compare=False)
    suggestion: Suggestion = field(compare=False)
    accepted: str = field(compare=False)
    read_place: Callable[[], str | None] = field(compare=False)


class RetentionMeter:
    """Appointments to look again. Safe to use from several threads."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._appointments: list[_Appointment] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(
        self, suggestion: Suggestion, accepted: str, read_place: Callable[[], str | None]
    ) -> None:
        """`read_place` returns what stands now where `accepted` was put (see `find_place`).

        None means that the document cannot be seen any more, which is no loss of the text.
        """
        now_s = self._monotonic_s()
        with self._changed:
            for horizon_s in HORIZONS_S:
                due = (now_s + horizon_s, next(self._order), horizon_s)
                appointment = _Appointment(*due, suggestion, accepted, read_place)
                heapq.heappush(self._appointments, appointment)
            self._changed.notify()

    def forget(self, suggestion: Suggestion) -> None:
        """Drop what is not yet due, as when a later acceptance replaces this one."""
        with self._changed:
            self._appointments = [
                one for one in self._appointments if one.suggestion is not suggestion
            ]
            heapq.heapify(self._appointments)

    @property
    def next_due_s(self) -> float | None:
        """On the meter's clock."""
        with self._changed:
            return self._appointments[0].due_s if self._appointments else None

    def measure_due(self) -> int:
        """Measure and report whatever is due; returns how many reports were made.

        A look that comes later than twice its horizon, as after a laptop's sleep, counts as none.
        """
        now_s = self._monotonic_s()
        due = self._take_due(now_s)
        for appointment in due:
            _keep(appointment, late_s=now_s - appointment.due_s)
        return len(due)

    def _take_due(self, now_s: float) -> list[_Appointment]:
        due = []
        with self._changed:
            while self._appointments and self._appointments[0].due_s <= now_s:
                due.append(heapq.heappop(self._appointments))
        return due

    def start(self) -> None:
        """Measure in a thread of the meter's own, until `close`."""
        self._thread = threading.Thread(target=self._run, name="tendril-retention", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            self.measure_due()
            with self._changed:
                due_s = self._appointments[0].due_s if self._appointments else None
                wait_s = None if due_s is None else max(0.0, due_s - self._monotonic_s())
                if not self._closed:
                    self._changed.wait(wait_s)


def _keep(appointment: _Appointment, late_s: float) -> None:
    suggestion, horizon_s = appointment.suggestion, appointment.horizon_s
    if late_s > horizon_s:
        suggestion.not_observable(horizon_s, "too_late")
        return
    place = appointment.read_place()
    if place is None:
        suggestion.not_observable(horizon_s, "document_closed")
        return
    suggestion.retained(horizon_s, measure_retention(appointment.accepted, place))
