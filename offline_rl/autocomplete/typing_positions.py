"""Where a person pauses while typing a file, and what an editor then sends.

A pause falls between two words (a run of letters, a digit, a run of punctuation, each with the
space before it), where the next word is not just white space.
"""

import random
import re
from collections.abc import Iterator
from typing import NamedTuple

WORD = re.compile(r" ?[A-Za-z_]+| ?[0-9]| ?[^\sA-Za-z_0-9]+|\n+[ \t]*|[ \t]+|.")
CONTEXT_BYTES = 180
"""Bytes bound tokens: a byte-level tokenizer makes at most one of each."""
LOOKAHEAD_CHARS = 80
MIN_CONTEXT_CHARS = 40


class Pause(NamedTuple):
    """One moment at which the editor asks for a suggestion."""

    prompt: str
    """The text before the cursor, as far back as the editor sends."""
    following: str
    """What the person really types next; the model never sees it."""


def words(text: str) -> list[str]:
    """The text cut into words; joined they give it back."""
    return WORD.findall(text)


def pauses(text: str, rng: random.Random, *, mean_words_between: float) -> Iterator[Pause]:
    """Pauses through `text` from a random place on, at random distances."""
    boundaries = pause_offsets(text)
    if not boundaries:
        return
    at = rng.randrange(len(boundaries))
    while at < len(boundaries):
        yield pause_at(text, boundaries[at])
        at += 1 + int(rng.expovariate(1 / mean_words_between))


def pause_offsets(text: str) -> list[int]:
    """Character offsets at which a person may pause."""
    offsets: list[int] = []
    offset = 0
    for word in words(text):
        if offset >= MIN_CONTEXT_CHARS and not word.isspace():
            offsets.append(offset)
        offset += len(word)
    return offsets


def pause_at(text: str, offset: int) -> Pause:
    """The pause with the cursor at `offset`; the prompt starts at a line where one is near."""
    before = text[max(0, offset - CONTEXT_BYTES) : offset].encode()
    prompt = before[-CONTEXT_BYTES:].decode(errors="ignore")
    if len(before) >= CONTEXT_BYTES:
        newline = prompt.find("\n", 0, len(prompt) - MIN_CONTEXT_CHARS)
        prompt = prompt[max(newline, 0) :]
    return Pause(prompt, text[offset : offset + LOOKAHEAD_CHARS])
