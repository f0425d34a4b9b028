"""Between text and token ids: the tokenizer of a checkpoint folder, and text as it is sampled."""

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from tendril.model_folder import TOKENIZER_FILE, tokenizer_digest


class TextCodec:
    """A checkpoint's tokenizer and its digest."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        self.digest = tokenizer_digest(folder)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def token_id(self, token: str | None) -> int | None:
        """The id of a special token, None where the tokenizer has no such token."""
        return self.tokenizer.token_to_id(token) if token else None

    def token_text(self, token_id: int) -> str:
        """One token by itself; a replacement character stands for part of a character."""
        return self.tokenizer.decode([token_id], skip_special_tokens=False)


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
        self.text += piece
        self.token_bytes.append(len(piece.encode()))
        cut = min((at for s in self._stop if (at := self.text.find(s)) >= 0), default=None)
        if cut is not None:
            self.stopped = True
            self._cut(cut)
        end = len(self.text)
        if not (self.stopped or is_last):
            end -= max((_overlap(self.text, s) for s in self._stop), default=0)
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


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
