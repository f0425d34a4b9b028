"""Sets of bytes of a text, as sorted [start, end) spans that do not touch."""

from collections.abc import Iterable, Sequence

Span = tuple[int, int]
"""[start, end) byte offsets in the shown text."""


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The union of `spans`, which may overlap and come in any order."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return tuple(union)


def without(spans: Sequence[Span], gone: Iterable[Span]) -> tuple[Span, ...]:
    """`spans` (merged) less the bytes of `gone`."""
    left = list(spans)
    for cut_start, cut_end in merged(gone):
        left = [
            piece
            for start, end in left
            for piece in ((start, min(end, cut_start)), (max(start, cut_end), end))
            if piece[0] < piece[1]
        ]
    return tuple(left)


def num_bytes(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)
