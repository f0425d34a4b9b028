"""Completions in the words of OpenAI's reference."""

from collections.abc import Iterator, Sequence
from typing import Any

from serving.api.choices import Piece
from serving.api.logprobs import completion_logprobs
from serving.api.reply_parts import Envelope, usage
from serving.api.wire import CompletionBody
from serving.recorder import Decision
from serving.text import TextCodec
from tendril.records import FinishReason


class CompletionReply:
    """See `serving.api.answer.Reply`; `echoes` are the prompts' texts where they are asked for."""

    def __init__(
        self,
        body: CompletionBody,
        decisions: Sequence[Decision],
        codec: TextCodec,
        echoes: Sequence[str] | None,
    ) -> None:
        self._body, self._decisions, self._codec, self._echoes = body, decisions, codec, echoes
        self._envelope = Envelope("text_completion", "cmpl", decisions)
        self._num_reported = [0] * len(decisions)

    def whole(self) -> dict[str, Any]:
        choices = [
            self._choice(i, self._echo(i) + decision.text.text, decision.finish_reason)
            for i, decision in enumerate(self._decisions)
        ]
        return self._envelope.around(choices, usage=self._usage())

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        index, text = piece.choice, piece.text
        reason = self._decisions[index].finish_reason if piece.ended else None
        if self._num_reported[index] == 0:
            text = self._echo(index) + text
        choice = self._choice(index, text, reason)
        self._num_reported[index] = len(self._decisions[index].tokens)
        nothing_yet = {"usage": None} if self._body.include_usage else {}
        yield self._envelope.around([choice], **nothing_yet)

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        if self._body.include_usage:
            yield self._envelope.around([], usage=self._usage())

    def _choice(self, index: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
        num_top = self._body.logprobs
        return {
            "index": index,
            "text": text,
            "finish_reason": reason,
            "logprobs": None if num_top is None else completion_logprobs(
                self._decisions[index], self._codec, num_top, self._num_reported[index]
            ),
        }  # fmt: skip

    def _echo(self, index: int) -> str:
        return "" if self._echoes is None else self._echoes[index // self._body.n]

    def _usage(self) -> dict[str, int]:
        return usage(self._decisions, len(self._decisions) // self._body.n)
