"""Text as it is sampled: bytes are counted for the token that added them, stops are never shown."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.text import SampledText, TextCodec
from tests.serving.small_model import VOCABULARY


@pytest.fixture(scope="session")
def codec(checkpoint: Path) -> TextCodec:
    return TextCodec(checkpoint)


def grow(codec: TextCodec, ids: list[int], *stop: str) -> tuple[SampledText, list[str]]:
    text = SampledText(codec, stop)
    pieces: list[str] = []
    for i, token_id in enumerate(ids):
        pieces.append(text.add(token_id, is_last=i == len(ids) - 1))
        if text.stopped:
            break
    return text, pieces


@given(ids=st.lists(st.integers(0, VOCABULARY - 1), max_size=30))
def test_any_ids_give_text_whose_bytes_are_all_some_tokens(
    codec: TextCodec, ids: list[int]
) -> None:
    text, pieces = grow(codec, ids)
    assert "".join(pieces) == text.text
    assert len(text.token_bytes) == len(ids)
    assert sum(text.token_bytes) == len(text.text.encode())
    assert codec.tokenizer.decode(ids).startswith(text.text)


@given(written=st.text(max_size=20), stop=st.text(min_size=1, max_size=3))
def test_nothing_of_a_stop_string_is_ever_shown(codec: TextCodec, written: str, stop: str) -> None:
    text, pieces = grow(codec, list(codec.encode_plain(written)), stop)
    expected, found, _ = written.partition(stop)
    assert "".join(pieces) == text.text == expected
    assert text.stopped == bool(found)
    assert sum(text.token_bytes) == len(expected.encode())


def test_a_character_split_over_tokens_counts_for_its_last_one(codec: TextCodec) -> None:
    ids = list(codec.encode("a€"))
    assert len(ids) == 4
    text, pieces = grow(codec, ids)
    assert (text.token_bytes, pieces) == ([1, 0, 0, 3], ["a", "", "", "€"])
    assert text.offsets() == [0, 1, 1, 1]


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_none(codec: TextCodec) -> None:
    ids = [codec.encode(character)[0] for character in "xENy"]
    text, pieces = grow(codec, ids, "END")
    assert pieces == ["x", "", "", "ENy"]
    assert text.token_bytes == [1, 1, 1, 1]
    assert grow(codec, ids[:3], "END")[1] == ["x", "", "EN"]


def test_special_tokens_have_no_bytes(codec: TextCodec) -> None:
    assert grow(codec, [1, 0])[0].token_bytes == [0, 0]
