"""Prompts for completions between two texts, in the control tokens that code models know."""

from serving.api.errors import Refused
from serving.text import TextCodec

MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SmolLM
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
)  # fmt: skip
"""Before the first text, between the two, after the second: Qwen, StarCoder, DeepSeek."""


def fill_in_middle(codec: TextCodec, before: tuple[int, ...], suffix: str) -> tuple[int, ...]:
    """The prompt whose completion stands between `before` and `suffix`.

    Raises `Refused` 400 where the tokenizer has no such tokens.
    """
    for marks in MARKS:
        ids = [codec.token_id(mark) for mark in marks]
        if None not in ids:
            start, hole, end = (token for token in ids if token is not None)
            return (start, *before, hole, *codec.encode_plain(suffix), end)
    raise Refused(
        400, "unsupported", "suffix: expected a model with fill-in-the-middle tokens, "
        "got one without", param="suffix",
    )  # fmt: skip
