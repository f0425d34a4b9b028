"""The open documents, and the suggestions in them."""

from collections.abc import Callable, Sequence

from lsprotocol import types
from pygls.workspace import PositionCodec, TextDocument

from tendril_client import RetentionMeter, Suggestion
from tendril_editor.place import Change, Place, line_changes, smallest
from tendril_editor.watched import Watched

MAX_WATCHED = 50
"""A document's last suggestions; older ones have had their measurements, or nearly."""


class Document:
    """One open document. It applies changes itself, as their ranges refer to the text before."""

    def __init__(self, uri: str, text: str, codec: PositionCodec) -> None:
        self._document = TextDocument(uri, text, position_codec=codec)
        self.watched: list[Watched] = []
        self.num_changes = 0
        self.is_open = True

    @property
    def text(self) -> str:
        return str(self._document.source)

    def offset(self, position: types.Position) -> int:
        return int(self._document.offset_at_position(position))

    def show(
        self, suggestion: Suggestion, text: str, at: int, meter: RetentionMeter,
        now_s: Callable[[], float],
    ) -> None:  # fmt: skip
        """Show one suggestion in place of the last."""
        self.end_display("replaced")
        shown = Watched(suggestion, text, at, meter, self._read, now_s)
        self.watched = [*self.watched[1 - MAX_WATCHED :], shown]
        shown.show()

    def apply(self, changes: Sequence[types.TextDocumentContentChangeEvent]) -> None:
        for change in changes:
            self.num_changes += 1
            for part in self._changes_of(change):
                for watched in self.watched:
                    watched.change(part)
            self._document.apply_change(change)

    def reject(self) -> None:
        for watched in self.watched:
            watched.reject()

    def end_display(self, reason: str) -> None:
        for watched in self.watched:
            watched.ignore(reason)

    def close(self) -> None:
        self.end_display("document_closed")
        self.is_open = False

    def _read(self, place: Place) -> str | None:
        return place.read(self.text) if self.is_open else None

    def _changes_of(self, event: types.TextDocumentContentChangeEvent) -> list[Change]:
        if isinstance(event, types.TextDocumentContentChangeWholeDocument):
            return line_changes(self.text, event.text)
        start, end = self.offset(event.range.start), self.offset(event.range.end)
        return [smallest(Change(start, end, event.text), self.text)]
