"""One suggestion in a document, followed from its display to its last measurement.

The editor tells only how the document changes, so outcomes are read from changes:

- the shown text, or a part from where it was left, put at its place at once: accepted, partially;
- its next character alone: typed along; the suggestion stays;
- anything else: typed over, ignored;
- what was accepted deleted: undone; put back: redone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tendril_client import RetentionMeter, Suggestion, byte_span
from tendril_editor.place import Change, Place


@dataclass(slots=True)
class Watched:
    """`suggestion` shown as `text` at offset `shown_at` of the document."""

    suggestion: Suggestion
    text: str
    shown_at: int
    meter: RetentionMeter
    read: Callable[[Place], str | None]
    """What the document holds there, or None if it is closed."""
    now_s: Callable[[], float]
    is_showing: bool = False
    shown_s: float = 0.0
    num_there: int = 0
    """Characters of the text that are in the document, accepted or typed along."""
    num_accepted: int = 0
    place: Place = field(init=False)

    def __post_init__(self) -> None:
        self.place = Place(self.shown_at, self.shown_at)

    def show(self) -> None:
        self.is_showing, self.shown_s = True, self.now_s()
        self.suggestion.shown()

    def reject(self) -> None:
        """The user's explicit no; after a partial acceptance just the end of the display."""
        if self.is_showing and self.num_accepted == 0:
            self.suggestion.rejected(reason="escape", visible_ms=self._visible_ms())
        self.is_showing = False

    def ignore(self, reason: str) -> None:
        """The display ends without a word of the user's."""
        if self.is_showing and self.num_accepted == 0:
            self.suggestion.ignored(reason=reason, visible_ms=self._visible_ms())
        self.is_showing = False

    def change(self, change: Change) -> None:
        """Follow one change. Call before the document is changed."""
        if self.is_showing and self._goes_on(change):
            return
        if self.is_showing:
            self.ignore("typed_over")
        if self.num_accepted and not self._put_back(change):
            self.place.follow(change)
            if self.suggestion.state == "placed" and self.place.start == self.place.end:
                self.suggestion.undone()

    def _goes_on(self, change: Change) -> bool:
        """Whether the change puts more of the shown text in its place."""
        there = self.shown_at + self.num_there
        left = self.text[self.num_there :]
        if (change.start, change.end) != (there, there) or not change.text:
            return False
        if not left.startswith(change.text):
            return False
        self.num_there += len(change.text)
        if len(change.text) > 1 or len(self.text) == 1:
            self._accept()
        elif self.num_there == len(self.text):
            self.ignore("typed_along")
        return True

    def _accept(self) -> None:
        self.num_accepted = self.num_there
        self.place.end = self.shown_at + self.num_there
        if self.num_there == len(self.text):
            self.is_showing = False
            self.suggestion.accepted(visible_ms=self._visible_ms())
        else:
            span = byte_span(self.text, 0, self.num_there)
            self.suggestion.accepted_partially(
                span=span, granularity="word", visible_ms=self._visible_ms()
            )
        self.meter.forget(self.suggestion)
        accepted = self.text[: self.num_accepted]
        self.meter.watch(self.suggestion, accepted, lambda: self.read(self.place))

    def _put_back(self, change: Change) -> bool:
        """Whether the change is the redo of an undo."""
        start = self.place.start
        accepted = self.text[: self.num_accepted]
        if self.suggestion.state != "undone" or change != (start, start, accepted):
            return False
        self.place.end = start + self.num_accepted
        self.suggestion.redone()
        return True

    def _visible_ms(self) -> float:
        return 1000 * (self.now_s() - self.shown_s)
