"""What a person who knows what comes next makes of a suggestion."""

from difflib import SequenceMatcher
from typing import NamedTuple

from offline_rl.autocomplete.typing_positions import words


class Match(NamedTuple):
    """A suggestion held against the text that really follows."""

    shown_bytes: int
    matching_bytes: int
    """From its start, in whole words; all of it where the text goes on with it."""
    similarity: float
    """In [0, 1]: of the suggestion to the text in its place."""

    @property
    def is_full(self) -> bool:
        return self.matching_bytes == self.shown_bytes > 0


def match(suggestion: str, following: str) -> Match:
    """Compare a suggestion with what the person was going to type."""
    shown_bytes = len(suggestion.encode())
    if following.startswith(suggestion):
        return Match(shown_bytes, shown_bytes, 1.0)
    matching = ""
    for word in words(suggestion):
        if not following.startswith(matching + word):
            break
        matching += word
    if matching.isspace():
        matching = ""  # nobody accepts white space alone
    place = following[: len(suggestion)]
    similarity = SequenceMatcher(None, suggestion, place, autojunk=False).ratio()
    return Match(shown_bytes, len(matching.encode()), similarity)


def recipe_reward(found: Match | None, threshold: float = 0.25) -> float:
    """The default recipe for someone who accepts just what is right and keeps it; silence is 0."""
    if found is None:
        return 0.0
    return found.matching_bytes / found.shown_bytes - threshold
