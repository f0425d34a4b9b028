"""A place in a document that edits move, grow and shrink. Offsets count code points."""

from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate
from typing import NamedTuple


class Change(NamedTuple):
    """Characters [start, end) of the document become `text`."""

    start: int
    end: int
    text: str


def smallest(change: Change, document: str) -> Change:
    """The change without what it leaves as it was.

    Editors replace the start of a word by the whole word, a file by the formatted file.
    """
    old = document[change.start : change.end]
    head = _num_shared(old, change.text)
    old, text = old[head:], change.text[head:]
    tail = _num_shared(old[::-1], text[::-1])
    start, end = change.start + head, change.end - tail
    return Change(start, end, text[: len(text) - tail])


def line_changes(before: str, after: str) -> list[Change]:
    """What turns one document into the other, line by line, the last change first.

    In that order the offsets of each are those of `before`.
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    offsets = [0, *accumulate(map(len, old))]
    changes = [
        smallest(Change(offsets[i1], offsets[i2], "".join(new[j1:j2])), before)
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if tag != "equal"
    ]
    return changes[::-1]


@dataclass(slots=True)
class Place:
    """Characters [start, end) of the document."""

    start: int
    end: int

    def follow(self, change: Change) -> None:
        """Go where the characters went.

        What is put at either edge stays outside. A change that takes from the inside puts its own
        text there.
        """
        grown = len(change.text) - (change.end - change.start)
        if change.start >= self.end:
            return
        if change.end <= self.start:
            self.start, self.end = self.start + grown, self.end + grown
        elif self.start == self.end:
            self.start = self.end = change.start
        else:
            self.start = min(self.start, change.start)
            self.end = max(self.end + grown, change.start + len(change.text))

    def read(self, document: str) -> str:
        return document[self.start : self.end]


def _num_shared(one: str, other: str) -> int:
    """How many characters both start with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
