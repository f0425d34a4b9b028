"""Per-token credit by byte offsets: the text is never tokenised again.

Shape: T = sampled completion tokens, all of them trainable.
"""

import math
from collections.abc import Sequence

Span = tuple[int, int]
"""[start, end) byte offsets in the shown text."""


def kept_shares(token_bytes: Sequence[int], span: Span | None) -> list[float]:
    """[T] share of each token's bytes inside the accepted `span`; None: nothing was accepted.

    A token without bytes counts as kept when it lies before the end of the span. When the span
    is the whole text every token is kept, those that end it without showing anything included.
    """
    if span is None:
        return [0.0] * len(token_bytes)
    start, end = span
    if start == 0 and end >= sum(token_bytes):
        return [1.0] * len(token_bytes)
    kept_T, position = [], 0
    for num_bytes in token_bytes:
        if num_bytes == 0:
            kept_T.append(float(start <= position < end))
        else:
            overlap = min(end, position + num_bytes) - max(start, position)
            kept_T.append(max(0, overlap) / num_bytes)
        position += num_bytes
    return kept_T


def token_credit(reward: float, kept_T: Sequence[float], spread: float) -> tuple[float, ...]:
    """[T] reward + spread * (kept - mean kept): the mean over all tokens is the reward."""
    if not kept_T:
        return ()
    mean_kept = math.fsum(kept_T) / len(kept_T)
    return tuple(reward + spread * (kept - mean_kept) for kept in kept_T)
