"""Pauses: between words, before something worth suggesting, with a bounded prompt."""

import random

from hypothesis import given
from hypothesis import strategies as st

from offline_rl.autocomplete.typing_positions import (
    CONTEXT_BYTES,
    MIN_CONTEXT_CHARS,
    pause_at,
    pause_offsets,
    pauses,
    words,
)

CODE = """def area(width: int, height: int) -> int:
    # Square metres, rounded down.
    return width * height
"""


def test_words_keep_the_space_before_them_and_lose_nothing():
    assert words("x = foo(1)\n    y") == ["x", " =", " foo", "(", "1", ")", "\n    ", "y"]


@given(st.text())
def test_words_join_back_to_the_text(text: str):
    assert "".join(words(text)) == text


def test_no_pause_stands_before_white_space_or_near_the_start():
    offsets = pause_offsets(CODE)
    assert offsets
    assert min(offsets) >= MIN_CONTEXT_CHARS
    assert not any(CODE[offset] == "\n" for offset in offsets)


def test_a_pause_splits_the_text_at_the_cursor():
    offset = CODE.index("width * height")
    pause = pause_at(CODE, offset)
    assert pause.prompt == CODE[:offset]
    assert pause.following == "width * height\n"


@given(st.text(min_size=300))
def test_a_prompt_never_exceeds_its_bytes(text: str):
    assert len(pause_at(text, len(text) - 1).prompt.encode()) <= CONTEXT_BYTES


def test_a_long_prompt_starts_at_a_line():
    text = "first line of many\n" * 30
    assert pause_at(text, len(text) - 5).prompt.startswith("\nfirst line")


def test_pauses_move_forward_and_repeat_for_a_seed():
    once = list(pauses(CODE * 4, random.Random(3), mean_words_between=2.0))
    assert once
    assert once == list(pauses(CODE * 4, random.Random(3), mean_words_between=2.0))
    assert list(pauses("", random.Random(3), mean_words_between=2.0)) == []
