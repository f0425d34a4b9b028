"""How much of an accepted text is still there, from the text and the document around its place.

The measures are those of editors in the field: 4-gram overlap and "no revert" of VS Code's edit
survival, accepted-and-retained characters (ARC) of its edit telemetry; a token distance above
0.33 counts as a rewrite, as in Cody's persistence tracker.
"""

import re
from collections import Counter
from difflib import SequenceMatcher
from typing import NamedTuple

MIN_MATCH_CHARACTERS = 4
"""Shorter matches are chance: any two texts share single letters."""
REWRITE_DISTANCE = 0.33
MAX_REWRITTEN_SHARE = 0.5


class Retention(NamedTuple):
    """What is left of an accepted text."""

    four_gram: float
    """Share in [0, 1] of the accepted text's 4-grams of characters that its place still holds."""
    no_revert: float
    """1 minus the share in [0, 1] taken back towards the text before, where nothing stood."""
    arc_chars: int
    """Accepted and retained: characters that were not touched, of `total_chars` accepted."""
    total_chars: int
    token_distance: float
    """Edit distance in tokens between accepted text and what its place holds now, a token."""

    @property
    def share(self) -> float:
        """no_revert * arc_chars / total_chars in [0, 1], at most 0.5 for a rewrite."""
        share = self.no_revert * self.arc_chars / self.total_chars
        is_rewrite = self.token_distance > REWRITE_DISTANCE
        return min(share, MAX_REWRITTEN_SHARE) if is_rewrite else share

    def details(self) -> dict[str, float]:
        """The fields of a `retention.measured` event."""
        return {
            "value": self.share,
            "four_gram": self.four_gram,
            "no_revert": self.no_revert,
            "arc_chars": self.arc_chars,
            "total_chars": self.total_chars,
        }


def measure_retention(accepted: str, place: str) -> Retention:
    """`place`: the text that stands now where `accepted` was put, between its tracked ends."""
    if not place:
        return Retention(0.0, 0.0, 0, len(accepted), 1.0)
    return Retention(
        four_gram=_four_gram_overlap(accepted, place),
        no_revert=min(1.0, len(place) / len(accepted)),
        arc_chars=sum(size for _, _, size in _matches(accepted, place)),
        total_chars=len(accepted),
        token_distance=_token_distance(accepted, place),
    )


def find_place(accepted: str, around: str) -> str:
    """Where `accepted` is in `around`, for who cannot track it: the first to the last match.

    `around` is the document near the place. What was changed at the very ends counts as gone.
    """
    blocks = _matches(accepted, around)
    if not blocks:
        return ""
    (_, start, _), (_, last, size) = blocks[0], blocks[-1]
    return around[start : last + size]


def _matches(accepted: str, text: str) -> list[tuple[int, int, int]]:
    """(start in accepted, start in text, size) of common parts, in order."""
    if accepted in text:
        return [(0, text.index(accepted), len(accepted))]
    matcher = SequenceMatcher(None, accepted, text, autojunk=False)
    blocks = [(block.a, block.b, block.size) for block in matcher.get_matching_blocks()]
    return [block for block in blocks if block[2] >= MIN_MATCH_CHARACTERS]


def _four_gram_overlap(accepted: str, place: str) -> float:
    grams, now = _four_grams(accepted), _four_grams(place)
    return (grams & now).total() / grams.total() if grams else float(accepted == place)


def _four_grams(text: str) -> Counter[str]:
    return Counter(text[i : i + 4] for i in range(len(text) - 3))


def _token_distance(accepted: str, place: str) -> float:
    """Levenshtein distance in words and signs, divided by the longer one's count, at most 1."""
    old, new = _tokens(accepted), _tokens(place)
    row = list(range(len(new) + 1))
    for i, token in enumerate(old, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(new, start=1):
            cost = diagonal + (token != other)
            diagonal, row[j] = row[j], min(cost, row[j] + 1, row[j - 1] + 1)
    return row[-1] / max(len(old), len(new), 1)


def _tokens(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)
