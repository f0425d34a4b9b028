"""Event time: when something happened, by a client's clock put right.

Everything that decides is on the log's clock; event time orders what clients did, gives durations,
and says whether feedback that was logged late had happened in time.
"""

import statistics
from collections.abc import Sequence

from tendril.records import Feedback


def session_skew_s(heartbeats_s: Sequence[float], events: Sequence[Feedback]) -> float:
    """Seconds to add to a session's client times.

    `heartbeats_s`: ingest minus client time of its heartbeats, which are sent at once: their
    median. Without any, the smallest of such differences among `events`: the least delayed.
    """
    if heartbeats_s:
        return statistics.median(heartbeats_s)
    return min((event.ingested_at - event.client_time for event in events), default=0.0)


def event_time(event: Feedback, skew_s: float) -> float:
    """Unix seconds; never after the event had been received."""
    return min(event.client_time + skew_s, event.ingested_at)
