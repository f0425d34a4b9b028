"""Tool calls in a model's text, in the Hermes form that most open models are trained to write:
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

A call is passed on once it is whole: what turns out to be no call then stays content. The parsers
of transformers raise there, and have no notion of it; other forms are vLLM's to parse.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from serving.text import overlap
from tendril.records import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class _Written(msgspec.Struct):
    """What stands between the marks; `arguments` stay as the model wrote them."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    name: str
    arguments: str
    """A JSON object."""
    call_id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


class ToolCallReader:
    """Splits a reply into content and calls, while it is sampled.

    `prefill` is what the prompt already says of the reply. White space around calls is no content.
    """

    def __init__(self, names: frozenset[str], prefill: str = "") -> None:
        self._names, self._num_prefilled = names, len(prefill)
        self._text = prefill
        self._inside = False
        self._space = ""
        """Came before the call that is being read."""
        self.calls: list[ToolCall] = []

    def add(self, piece: str) -> Iterator[str | Call]:
        """Content and calls that are certain now, in order."""
        self._text += piece
        while (at := self._text.find(CLOSE if self._inside else OPEN)) >= 0:
            if self._inside:
                body, self._text = self._text[:at], self._text[at + len(CLOSE) :]
                yield from self._call(body, CLOSE)
            else:
                before, self._text = self._text[:at], self._text[at + len(OPEN) :]
                content = before.rstrip()
                self._space = before[len(content) :]
                yield from _some(content)
            self._inside = not self._inside
        if not self._inside:
            yield from self._certain()

    def finish(self) -> Iterator[str | Call]:
        """What is left: a call may lack its closing mark, as where a stop string cut it."""
        rest, self._text = self._text, ""
        if self._inside:
            yield from self._call(rest, "")
        elif rest.strip() or not self.calls:
            yield from _some(rest)

    def _certain(self) -> Iterator[str]:
        """All but what may be white space before a call, or the beginning of its mark."""
        end = len(self._text) - overlap(self._text, OPEN)
        content = self._text[:end].rstrip()
        self._text = self._text[len(content) :]
        yield from _some(content)

    def _call(self, body: str, close: str) -> Iterator[str | Call]:
        skipped, self._num_prefilled = self._num_prefilled, 0
        call = _read(body)
        if call is None:
            self.calls.append(ToolCall(name=None, valid=False))
            yield from _some(self._space + (OPEN + body + close)[skipped:])
        else:
            self.calls.append(ToolCall(name=call.name, valid=call.name in self._names))
            yield call


def _some(content: str) -> Iterator[str]:
    if content:
        yield content


def _read(body: str) -> Call | None:
    try:
        written = msgspec.json.decode(body.encode(), type=_Written)
        msgspec.json.decode(written.arguments, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None
    return Call(written.name, bytes(written.arguments).decode()) if written.name else None


def read_tool_calls(text: str, names: frozenset[str], prefill: str = "") -> tuple[ToolCall, ...]:
    """The calls of a whole reply, well formed or not, for its trace."""
    reader = ToolCallReader(names, prefill)
    for part in (reader.add(text), reader.finish()):
        for _ in part:
            pass
    return tuple(reader.calls)
