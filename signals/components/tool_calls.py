"""Invalid tool calls stay in the data as negatives, on the tokens that wrote them.

Dropping them teaches a model that breaking a call hides a bad turn (anchors 1.2, hard rule 3).
"""

from tendril.records import Trace


def tool_call_value(trace: Trace) -> float | None:
    """Minus the share of the trace's tool calls that are invalid; None if none is."""
    if not trace.tool_calls:
        return None
    num_invalid = sum(not call.valid for call in trace.tool_calls)
    return -num_invalid / len(trace.tool_calls) if num_invalid else None


def blamed_tokens(trace: Trace) -> list[float]:
    """[T] 1 for the tokens that wrote an invalid call.

    Where serving did not say which, those that show no text; if all or none do, no token is
    singled out.
    """
    invalid = [call for call in trace.tool_calls if not call.valid]
    spans = [call.tokens for call in invalid if call.tokens is not None]
    num_tokens = len(trace.token_bytes)
    if len(spans) == len(invalid):
        inside = {i for start, end in spans for i in range(max(0, start), min(end, num_tokens))}
        return [float(i in inside) for i in range(num_tokens)]
    return [float(num_bytes == 0) for num_bytes in trace.token_bytes]
