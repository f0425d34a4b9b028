"""Between text and token ids: the tokenizer of a checkpoint folder, and text as it is sampled."""

import re
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from serving.chat_template import ChatTemplate
from serving.control_tokens import ControlTokens, Typed
from tendril.model_folder import TOKENIZER_FILE, tokenizer_digest

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TextCodec:
    """A checkpoint's tokenizer, its digest, and its way of writing a conversation."""

    def __init__(self, folder: Path) -> None:
        path = folder / TOKENIZER_FILE
        self.tokenizer = Tokenizer.from_file(str(path))
        self._plain = Tokenizer.from_file(str(path))
        self._plain.encode_special_tokens = True
        self.digest = tokenizer_digest(folder)
        self.chat_template = ChatTemplate(folder)
        self._control = ControlTokens(self.tokenizer)

    def encode(self, text: str) -> tuple[int, ...]:
        """Names of control tokens become those tokens."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Names of control tokens stay text."""
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_chat(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, prefill: str = ""
    ) -> tuple[int, ...]:
        """The conversation as a prompt that ends where the reply begins, after `prefill` of it.

        Control tokens come from the template alone: their names inside of messages stay text.
        Raises `InvalidConversation`.
        """
        typed = Typed()
        rendered = self.chat_template.render(
            self._control.mask(messages, typed), self._control.mask(tools, typed)
        )
        parts = typed.split(rendered + prefill)
        return tuple(
            token
            for text, is_typed in parts
            for token in (self.encode_plain(text) if is_typed else self.encode(text))
        )

    def chat_end_ids(self) -> tuple[int, ...]:
        """Tokens that end a turn, as the folder's files name them."""
        ids = map(self.token_id, self.chat_template.end_tokens)
        return tuple({*self.chat_template.end_ids, *(i for i in ids if i is not None)})

    def token_id(self, token: str | None) -> int | None:
        """The id of a special token, None where the tokenizer has no such token."""
        return self.tokenizer.token_to_id(token) if token else None

    def token_text(self, token_id: int) -> str:
        """One token by itself; a replacement character stands for part of a character."""
        return self.tokenizer.decode([token_id], skip_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for, also where they are part of a character."""
        text = self.token_text(token_id)
        if REPLACEMENT not in text:
            return text.encode()
        token = self.tokenizer.id_to_token(token_id) or ""
        if single := BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(single[1])
        if all(char in self._byte_of for char in token):
            return bytes(self._byte_of[char] for char in token)
        return text.encode()

    @cached_property
    def _byte_of(self) -> dict[str, int]:
        """The letters in which byte-level tokenizers write bytes."""
        from transformers.convert_slow_tokenizer import bytes_to_unicode  # only logprobs need it

        return {char: byte for byte, char in bytes_to_unicode().items()}


class SampledText:
    """Text of one reply while it grows; a character split over tokens waits for its last one."""

    def __init__(self, codec: TextCodec, stop: tuple[str, ...]) -> None:
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokenizer, self._stop = codec.tokenizer, stop
        self._num_shown = 0
        self.text = ""
        self.token_bytes: list[int] = []
        self.stopped = False

    def add(self, token_id: int, *, is_last: bool = False) -> str:
        """Text that can be shown now, cut before a stop string (`stopped` is then set).

        What may be the beginning of a stop string is held back until it is not, or `is_last`.
        """
        piece = self._stream.step(self._tokenizer, token_id) or ""
        searched = len(self.text)
        self.text += piece
        self.token_bytes.append(len(piece.encode()))
        found = (self.text.find(s, max(0, searched - len(s) + 1)) for s in self._stop)
        cut = min((at for at in found if at >= 0), default=None)
        if cut is not None:
            self.stopped = True
            self._cut(cut)
        end = len(self.text)
        if not (self.stopped or is_last):
            end -= max((overlap(self.text, s) for s in self._stop), default=0)
        start, self._num_shown = self._num_shown, max(self._num_shown, end)
        return self.text[start:end]

    def offsets(self) -> list[int]:
        """Where each token's text begins, in characters."""
        encoded, offsets, start, num_chars = self.text.encode(), [], 0, 0
        for size in self.token_bytes:
            offsets.append(num_chars)
            num_chars += len(encoded[start : start + size].decode())
            start += size
        return offsets

    def _cut(self, at: int) -> None:
        """Shorten the text; tokens that lost all their bytes count none."""
        excess = len(self.text[at:].encode())
        self.text = self.text[:at]
        for i in range(len(self.token_bytes) - 1, -1, -1):
            taken = min(excess, self.token_bytes[i])
            self.token_bytes[i] -= taken
            excess -= taken


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` with which `mark` begins, all of `mark` excepted."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)
