"""Per-token credit by byte offsets: the text is never tokenised again.

Shape: T = sampled completion tokens.
"""

import math
from collections.abc import Sequence

from signals.spans import Span


def kept_shares(token_bytes: Sequence[int], spans: Sequence[Span]) -> list[float]:
    """[T] share of each token's bytes inside the kept `spans`, which are merged (`signals.spans`).

    A token without bytes counts as kept when it lies before the end of a span. When a span is
    the whole text every token is kept, those that end it without showing anything included.
    """
    if spans and spans[0][0] <= 0 and spans[0][1] >= sum(token_bytes):
        return [1.0] * len(token_bytes)
    if not spans:
        return [0.0] * len(token_bytes)
    kept_T, position, first = [], 0, 0
    for num_bytes in token_bytes:
        end = position + num_bytes
        while first < len(spans) and spans[first][1] <= position:
            first += 1
        if num_bytes == 0:
            kept_T.append(float(first < len(spans) and spans[first][0] <= position))
        else:
            kept_T.append(_overlap(spans, first, position, end) / num_bytes)
        position = end
    return kept_T


def _overlap(spans: Sequence[Span], first: int, start: int, end: int) -> int:
    total = 0
    for span_start, span_end in spans[first:]:
        if span_start >= end:
            break
        total += max(0, min(end, span_end) - max(start, span_start))
    return total


def token_credit(
    reward: float,
    kept_T: Sequence[float],
    spread: float,
    *,
    blamed_T: Sequence[float] = (),
    blame: float = 0.0,
    trainable_T: Sequence[bool] = (),
) -> tuple[float, ...]:
    """[T] reward + spread * (kept - mean kept) - blame * (blamed - mean blamed), 0 if not trained.

    Means are over the trainable tokens (empty: all), so the mean of their credit is the reward.
    """
    num_tokens = len(kept_T)
    if not blamed_T and not trainable_T and len(set(kept_T)) <= 1:
        return (reward,) * num_tokens
    trainable_T = trainable_T or [True] * num_tokens
    blamed_T = blamed_T or [0.0] * num_tokens
    shifts_T = [spread * kept - blame * bad for kept, bad in zip(kept_T, blamed_T, strict=True)]
    trained = [shift for shift, trains in zip(shifts_T, trainable_T, strict=True) if trains]
    mean_shift = math.fsum(trained) / max(1, len(trained))
    return tuple(
        reward + (shift - mean_shift) if trains else 0.0
        for shift, trains in zip(shifts_T, trainable_T, strict=True)
    )
