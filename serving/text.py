"""Between text and token ids: the tokenizer of a checkpoint folder, and text as it is sampled."""

from pathlib import Path

from blake3 import blake3
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class TextCodec:
    """A checkpoint's tokenizer and its digest."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        self.tokenizer = Tokenizer.from_file(str(path))
        self.digest = blake3(path.read_bytes()).hexdigest()[:32]

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def token_id(self, token: str | None) -> int | None:
        """The id of a special token, None where the tokenizer has no such token."""
        return self.tokenizer.token_to_id(token) if token else None


class SampledText:
    """Text of one reply while it grows; a character split over tokens waits for its last one."""

    def __init__(self, codec: TextCodec, stop: tuple[str, ...]) -> None:
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokenizer, self._stop = codec.tokenizer, stop
        self.text = ""
        self.token_bytes: list[int] = []
        self.stopped = False

    def add(self, token_id: int) -> str:
        """Text that `token_id` added, cut before a stop string (`stopped` is then set)."""
        piece = self._stream.step(self._tokenizer, token_id) or ""
        before = len(self.text)
        self.text += piece
        cut = min((at for s in self._stop if (at := self.text.find(s)) >= 0), default=None)
        if cut is not None:
            self.stopped = True
            self._cut(cut)
        added = self.text[before:] if cut is None else self.text[min(before, cut) :]
        self.token_bytes.append(len(added.encode()))
        return added

    def _cut(self, at: int) -> None:
        """Shorten the text; tokens that lost all their bytes count none."""
        self.text = self.text[:at]
        excess = sum(self.token_bytes) - len(self.text.encode())
        for i in range(len(self.token_bytes) - 1, -1, -1):
            taken = min(max(excess, 0), self.token_bytes[i])
            self.token_bytes[i] -= taken
            excess -= taken
