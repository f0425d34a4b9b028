"""From bytes on the log to a usable Trace or Feedback: what comes from outside is checked here."""

import math

from tendril.log import LogRecord
from tendril.records import Feedback, InvalidRecord, Trace, decode


def read(record: LogRecord) -> Trace | Feedback:
    """Decode and check one record of the `traces` or `feedback` topic.

    Raises `InvalidRecord` saying what is wrong with it.
    """
    if record.topic == Trace.TOPIC:
        return _checked_trace(decode(Trace, record.value))
    return _checked_feedback(decode(Feedback, record.value))


def _checked_trace(trace: Trace) -> Trace:
    if not math.isfinite(trace.served_at):
        raise InvalidRecord(f"trace {trace.trace_id}: served_at {trace.served_at} is no time")
    if any(num_bytes < 0 for num_bytes in trace.token_bytes):
        raise InvalidRecord(f"trace {trace.trace_id}: negative token_bytes {trace.token_bytes}")
    if not all(map(math.isfinite, trace.behavior_logprobs)):
        raise InvalidRecord(f"trace {trace.trace_id}: behavior_logprobs are not all finite")
    return trace


def _checked_feedback(event: Feedback) -> Feedback:
    for name in ("client_time", "ingested_at"):
        if not math.isfinite(getattr(event, name)):
            raise InvalidRecord(f"feedback {event.event_id}: {name} is not finite")
    for name in ("client_monotonic_s", "visible_ms"):
        value = getattr(event, name)
        if value is not None and not math.isfinite(value):
            raise InvalidRecord(f"feedback {event.event_id}: {name} is not finite")
    return event
