"""Chat completions in the words of OpenAI's reference."""

from collections.abc import Iterator, Sequence
from typing import Any

from serving.api.chat_wire import ChatBody
from serving.api.choices import Piece
from serving.api.logprobs import chat_logprobs
from serving.api.reply_parts import Envelope, usage
from serving.api.tool_calls import Call, ToolCallReader
from serving.recorder import Decision
from serving.text import TextCodec


class ChatReply:
    """See `serving.api.answer.Reply`. `prefill` is what the prompt already says of the reply."""

    def __init__(
        self, body: ChatBody, decisions: Sequence[Decision], codec: TextCodec, prefill: str
    ) -> None:
        self._body, self._decisions, self._codec, self._prefill = body, decisions, codec, prefill
        self._names = frozenset(tool.function.name for tool in body.offered_tools)
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._envelope = Envelope(kind, "chatcmpl", decisions)
        self._streamed = [_Streamed(self._reader()) for _ in decisions]

    def _reader(self) -> ToolCallReader | None:
        return ToolCallReader(self._names, self._prefill) if self._names else None

    def whole(self) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": self._message(decision),
                "finish_reason": decision.finish_reason,
                "logprobs": self._logprobs(decision),
            }
            for index, decision in enumerate(self._decisions)
        ]
        return self._envelope.around(choices, usage=usage(self._decisions))

    def _message(self, decision: Decision) -> dict[str, Any]:
        parts = list(_parts(self._reader(), decision.text.text, ended=True))
        content = "".join(part for part in parts if isinstance(part, str))
        calls = [_written(part) for part in parts if isinstance(part, Call)]
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        return message | {"content": content or None, "tool_calls": calls} if calls else message

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """The role comes first; of a call its name, then its arguments."""
        streamed = self._streamed[piece.choice]
        if not streamed.started:
            streamed.started = True
            yield self._chunk(piece.choice, {"role": "assistant", "content": "", "refusal": None})
        for part in _parts(streamed.reader, piece.text, ended=piece.ended):
            for delta in streamed.deltas(part):
                yield self._chunk(piece.choice, delta, logprobs=True)
        if piece.ended:
            reason = self._decisions[piece.choice].finish_reason
            yield self._chunk(piece.choice, {}, logprobs=True, finish_reason=reason)

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        if self._body.include_usage:
            yield self._envelope.around([], usage=usage(self._decisions))

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: bool = False,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        """`logprobs`: of the tokens that no chunk has reported yet."""
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        if logprobs and self._body.logprobs:
            streamed, decision = self._streamed[index], self._decisions[index]
            start, streamed.num_reported = streamed.num_reported, len(decision.tokens)
            if start < streamed.num_reported:
                choice["logprobs"] = self._logprobs(decision, start)
        nothing_yet = {"usage": None} if self._body.include_usage else {}
        return self._envelope.around([choice], **nothing_yet)

    def _logprobs(self, decision: Decision, start: int = 0) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        content = chat_logprobs(decision.tokens[start:], self._codec)
        return {"content": content, "refusal": None}


class _Streamed:
    """How far the stream of one choice has come."""

    def __init__(self, reader: ToolCallReader | None) -> None:
        self.reader = reader
        self.started = False
        self.num_reported = 0
        self._num_calls = 0

    def deltas(self, part: str | Call) -> list[dict[str, Any]]:
        if isinstance(part, str):
            return [{"content": part}]
        index, self._num_calls = self._num_calls, self._num_calls + 1
        head = _written(Call(part.name, "", part.call_id))
        arguments = {"function": {"arguments": part.arguments}}
        return [{"tool_calls": [{"index": index, **each}]} for each in (head, arguments)]


def _parts(reader: ToolCallReader | None, text: str, *, ended: bool) -> Iterator[str | Call]:
    if reader is None:
        if text:
            yield text
        return
    yield from reader.add(text)
    if ended:
        yield from reader.finish()


def _written(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}
