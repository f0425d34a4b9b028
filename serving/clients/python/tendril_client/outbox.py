"""The outbox: takes events at once, delivers them in the background, at least once.

With a file, an event that `put` returned from outlives a crash of the process and is sent by the
next one. The server knows repeats by their id. Without a file, close the outbox or lose its rest.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_when_event_set
from tenacity.nap import sleep_using_event
from tenacity.wait import wait_base, wait_random_exponential

from tendril_client.delivery import BatchRefused, Drop, TryLater, Verdicts, post
from tendril_client.events import Event
from tendril_client.pending import PendingEvent, PendingEvents

log = logging.getLogger(__name__)
MAX_RETRY_AFTER_S = 3600.0


@dataclass(slots=True)
class Counts:
    """What became of events since the outbox was opened."""

    put: int = 0
    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    overflowed: int = 0
    """Dropped as the oldest, because `max_events` waited."""


class Outbox:
    """Events on their way. `on_drop` is called, on either thread, for each event given up."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        max_events: int = 10_000,
        batch_size: int = 100,
        backoff_s: float = 0.5,
        max_backoff_s: float = 60.0,
        on_drop: Callable[[Drop], None] = lambda drop: None,
        http: httpx2.Client | None = None,
    ) -> None:
        """Open the file and start to send what it holds."""
        self.counts = Counts()
        self._pending = PendingEvents(path)
        self._max_events, self._batch_size = max_events, batch_size
        self._limit = batch_size
        self._on_drop = on_drop
        self._http = http
        self._wait = next_try_s(wait_random_exponential(multiplier=backoff_s, max=max_backoff_s))
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._sender = threading.Thread(target=self._run, name="tendril-outbox", daemon=True)
        self._sender.start()

    def next_seq(self, session_id: str) -> int:
        return self._pending.next_seq(session_id)

    def put(self, event: Event, endpoint: str) -> None:
        """Keep the event for delivery to `endpoint` (absolute URL). Never waits for the network."""
        self._pending.add(PendingEvent(event.event_id, endpoint, event.to_json()))
        overflow = len(self._pending) - self._max_events
        dropped = self._pending.oldest(overflow) if overflow > 0 else []
        self._drop([Drop(old.event_id, old.body, "outbox full") for old in dropped])
        with self._changed:
            self.counts.put += 1
            self.counts.overflowed += len(dropped)
            self._changed.notify_all()

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until nothing is pending; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what can be sent now, within the time; a file keeps the rest."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._sender.join(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def _run(self) -> None:
        """The sender's life; it alone closes what it uses."""
        http = self._http or httpx2.Client(timeout=10.0)  # slow to make: it loads certificates
        attempts = Retrying(
            retry=retry_if_exception_type(TryLater),
            wait=self._wait,
            stop=stop_when_event_set(self._closing),
            sleep=sleep_using_event(self._closing),
            reraise=True,
        )
        while self._has_work():
            try:
                attempts(self._deliver, http)
            except TryLater as error:
                log.warning("closing with %d events undelivered: %s", self.num_pending, error)
                break
            except Exception:
                log.exception("a batch of events was not delivered; trying again")
                if self._closing.wait(1.0):
                    break
        self._pending.close()
        http.close()

    def _has_work(self) -> bool:
        """Wait for an event or the end; False if this is the end and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing.is_set() or len(self._pending) > 0)
        return len(self._pending) > 0

    def _deliver(self, http: httpx2.Client) -> None:
        """Send the oldest batch. Raises `TryLater` while some of it is not settled."""
        batch = self._pending.oldest(self._limit)
        if not batch:
            return
        try:
            verdicts = post(http, batch, time.time())
        except BatchRefused as error:
            if len(batch) > 1:
                self._limit = len(batch) // 2
                return
            [event] = batch
            verdicts = Verdicts([], [], [Drop(event.event_id, event.body, str(error))])
        self._limit = min(2 * self._limit, self._batch_size)
        self._settle(verdicts)
        num_left = len(batch) - sum(len(some) for some in verdicts)
        if num_left:
            raise TryLater(f"{batch[0].endpoint}: {num_left} of {len(batch)} events not taken yet")

    def _settle(self, verdicts: Verdicts) -> None:
        self._pending.remove([*verdicts.accepted, *verdicts.duplicate])
        self._drop(verdicts.refused)
        with self._changed:
            self.counts.accepted += len(verdicts.accepted)
            self.counts.duplicate += len(verdicts.duplicate)
            self.counts.refused += len(verdicts.refused)
            self._changed.notify_all()

    def _drop(self, drops: list[Drop]) -> None:
        self._pending.remove([drop.event_id for drop in drops])
        for drop in drops:
            self._on_drop(drop)


def next_try_s(backoff: wait_base) -> Callable[[RetryCallState], float]:
    """Seconds until the next try: random exponential back-off, or longer if the server says so."""

    def wait_s(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_s = error.after_s if isinstance(error, TryLater) else 0.0
        return max(backoff(state), min(asked_s, MAX_RETRY_AFTER_S))

    return wait_s
