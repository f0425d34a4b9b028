"""Prompts for completions between two texts."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from serving.api.errors import Refused
from serving.api.fill_in_middle import MARKS, fill_in_middle
from serving.text import TextCodec


@pytest.mark.parametrize("marks", MARKS)
def test_the_prompt_is_what_stands_around_the_gap(
    checkpoint: Path, tmp_path: Path, marks: tuple[str, str, str]
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    codec = TextCodec(folder)
    prompt = fill_in_middle(codec, codec.encode_plain("def "), f"(): {marks[2]}")
    start, hole, end = marks
    text = codec.tokenizer.decode(list(prompt), skip_special_tokens=False)
    assert text == f"{start}def {hole}(): {end}{end}"
    assert prompt.count(codec.token_id(end) or -1) == 1  # the one that was typed stays text


def test_a_tokenizer_without_such_tokens_is_named(checkpoint: Path) -> None:
    with pytest.raises(Refused, match="expected a model with fill-in-the-middle tokens"):
        fill_in_middle(TextCodec(checkpoint), (65,), "b")
