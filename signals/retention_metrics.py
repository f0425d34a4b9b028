"""How much of an inserted text is left, from texts alone: for clients, benchmarks and checks.

The measures are those that editors report: 4-gram similarity and no-revert of VS Code's edit
survival, accepted-and-retained characters (ARC) of its edit telemetry, and Cody's token distance
(anchors 1.1 and 1.2). ARC is theirs for tracked edits; from two texts alone it is the longest
common subsequence, the most that can have stayed.
"""

import re
from collections import Counter
from typing import NamedTuple

from rapidfuzz.distance import LCSseq, Levenshtein

N = 4
REWRITE_DISTANCE = 0.33
MAX_REWRITTEN_SHARE = 0.5


class Metrics(NamedTuple):
    """What is left of an inserted text."""

    four_gram: float
    no_revert: float
    arc_chars: int
    total_chars: int
    token_distance: float

    @property
    def kept(self) -> float:
        """k = no_revert * arc_chars / total_chars in [0, 1], at most 0.5 for a rewrite."""
        share = self.no_revert * self.arc_chars / self.total_chars if self.total_chars else 0.0
        is_rewrite = self.token_distance > REWRITE_DISTANCE
        return min(share, MAX_REWRITTEN_SHARE) if is_rewrite else share


def measure(before: str, inserted: str, now: str) -> Metrics:
    """`before`: what stood there before `inserted` replaced it; `now`: what stands there now."""
    return Metrics(
        four_gram=four_gram(inserted, now),
        no_revert=no_revert(before, inserted, now),
        arc_chars=LCSseq.similarity(inserted, now),
        total_chars=len(inserted),
        token_distance=token_distance(inserted, now),
    )


def four_gram(one: str, other: str) -> float:
    """Twice the shared 4-grams of characters over all of both texts, in [0, 1].

    Texts of fewer than four characters are equal or not.
    """
    if len(one) < N or len(other) < N:
        return float(one == other)
    ours, theirs = _grams(one), _grams(other)
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def no_revert(before: str, inserted: str, now: str) -> float:
    """1 - max(0, s(now, before) - s(inserted, before)) / (1 - s(inserted, before)), s = four_gram.

    1: the user went no step back; 0: all is as it was before.
    """
    similar = four_gram(inserted, before)
    if similar == 1:
        return 1.0
    return 1 - max(0.0, four_gram(now, before) - similar) / (1 - similar)


def token_distance(one: str, other: str) -> float:
    """Levenshtein distance in words and signs over the longer text's number of them, in [0, 1]."""
    return float(Levenshtein.normalized_distance(tokens(one), tokens(other)))


def tokens(text: str) -> list[str]:
    """Words and single signs, white space aside."""
    return re.findall(r"\w+|[^\w\s]", text)


def _grams(text: str) -> Counter[str]:
    return Counter(text[i : i + N] for i in range(len(text) - N + 1))
