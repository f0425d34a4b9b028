"""How long things took, or None where a client's clocks cannot be trusted.

Order never comes from clocks: it is the client's sequence number.
"""

from signals.clocks import event_time
from tendril.records import Feedback, Trace

MAX_SKEW_S = 300.0
CLOCK_TOLERANCE_S = 5.0
"""Wall clocks are stepped a little all the time; monotonic ones stand still while asleep."""


def duration_s(earlier: Feedback, later: Feedback, *, skew_s: float) -> float | None:
    """Seconds between two events of one client, `later` being so by its sequence number.

    None if the session's skew is over five minutes, or wall and monotonic time disagree, of
    which wall time that runs backwards is a case (anchors 4.1, rule 2).
    """
    wall_s = later.client_time - earlier.client_time
    if abs(skew_s) > MAX_SKEW_S or wall_s < -CLOCK_TOLERANCE_S:
        return None
    if earlier.client_monotonic_s is None or later.client_monotonic_s is None:
        return max(0.0, wall_s)
    monotonic_s = later.client_monotonic_s - earlier.client_monotonic_s
    if monotonic_s < 0 or abs(monotonic_s - wall_s) > CLOCK_TOLERANCE_S:
        return None
    return monotonic_s


def age_at_s(trace: Trace, event: Feedback, *, skew_s: float) -> float:
    """Seconds from the trace's completion to `event`; by our own clock if the client's is off."""
    is_off = abs(skew_s) > MAX_SKEW_S
    at = event.ingested_at if is_off else event_time(event, skew_s)
    return max(0.0, at - trace.served_at)
