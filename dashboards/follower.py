"""Follows the event log into a `LoopView`, beside everything else that reads it.

Each follower is a consumer group of its own and never commits: it always reads from the start.
"""

import threading

from dashboards.loop_view import LoopView
from dashboards.snapshot import LoopSnapshot
from tendril.log import EventLog
from tendril.records import TYPE_BY_TOPIC, InvalidRecord, decode

MAX_RECORDS = 1_000
TOPICS = (
    "releases", "policies", "nodes", "ledgers", "dead_letters", "episodes", "feedback", "traces",
)  # fmt: skip
"""Rare topics first, so that a long backlog of traffic never hides which version is live."""


class LoopFollower:
    """One thread polls; any thread may take snapshots. Close it to leave the log."""

    def __init__(self, log: EventLog, view: LoopView) -> None:
        self._reader = log.reader(None, TOPICS)
        self._view, self._lock = view, threading.Lock()

    def poll(self, timeout_s: float) -> int:
        """Fold in what is new, waiting at most `timeout_s` for it; returns how many records.

        Unreadable records are counted in the view. Raises `LogUnavailable`.
        """
        records = self._reader.poll(MAX_RECORDS, timeout_s)
        with self._lock:
            for record in records:
                try:
                    decoded = decode(TYPE_BY_TOPIC[record.topic], record.value)
                except InvalidRecord:
                    self._view.count_unreadable()
                else:
                    self._view.add(decoded, record.appended_at)
        return len(records)

    def snapshot(self) -> LoopSnapshot:
        with self._lock:
            return self._view.snapshot()

    def close(self) -> None:
        self._reader.close()
