"""Names of control tokens that somebody typed, kept apart from those that a template wrote.

`<|im_end|>` in a user's message is text. Before a conversation is rendered such names are
replaced by single characters of a private-use plane, which templates pass through.
"""

import re
from typing import Any

from tokenizers import Tokenizer

FIRST, LAST = 0x100000, 0x10FFFD
_PLACEHOLDERS = f"{chr(FIRST)}-{chr(LAST)}"


class Typed:
    """The names found in one conversation, each by its placeholder."""

    def __init__(self) -> None:
        self._placeholders: dict[str, str] = {}

    def placeholder(self, name: str) -> str:
        """The character that stands for `name`. Raises ValueError where there are no more."""
        if name not in self._placeholders and FIRST + len(self._placeholders) > LAST:
            raise ValueError(f"messages: expected at most {LAST - FIRST} private-use characters")
        return self._placeholders.setdefault(name, chr(FIRST + len(self._placeholders)))

    def split(self, rendered: str) -> list[tuple[str, bool]]:
        """(text, whether it was typed), in order; empty parts left out."""
        names = {placeholder: name for name, placeholder in self._placeholders.items()}
        if not names:
            return [(rendered, False)] if rendered else []
        parts = re.split(f"([{_PLACEHOLDERS}])", rendered)
        return [(names.get(part, part), part in names) for part in parts if part]


class ControlTokens:
    """The special tokens of a tokenizer, by name."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder().values()
        names = sorted((token.content for token in added if token.special), key=len, reverse=True)
        # A placeholder that was typed is masked as well, so that none is ever mistaken.
        self._typed = re.compile("|".join([*map(re.escape, names), f"[{_PLACEHOLDERS}]"]))

    def mask(self, value: Any, typed: Typed) -> Any:
        """`value`, of JSON's types, with placeholders in all its strings."""
        if isinstance(value, str):
            return self._typed.sub(lambda found: typed.placeholder(found[0]), value)
        if isinstance(value, list):
            return [self.mask(item, typed) for item in value]
        if isinstance(value, dict):
            return {self.mask(k, typed): self.mask(item, typed) for k, item in value.items()}
        return value
