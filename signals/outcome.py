"""What became of one trace: its events, put in order and folded one by one.

Order is the client's: (client_seq, client_time). The last decision, vote and follow-up win, redo
takes an undo back, and an event that cannot happen in its state is set aside as invalid.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from signals.credit import Span
from tendril.records import Feedback, FeedbackType

COMPLETION_PLACES: Set[FeedbackType] = frozenset()
CHAT_PLACES: Set[FeedbackType] = frozenset({"edit.applied", "content.inserted"})


@dataclass(slots=True)
class Outcome:
    """The state that `fold` builds and nobody else changes."""

    shown: bool = False
    visible_ms: float | None = None
    decision: FeedbackType | None = None
    share: float = 0.0
    """Accepted share of the shown bytes."""
    span: Span | None = None
    """The accepted bytes."""
    placed_by: Feedback | None = None
    """The event that put the model's text into the user's document, if it was not rejected."""
    undone_by: Feedback | None = None
    retention: dict[float, float] = field(default_factory=dict)
    """Measured retention by horizon in seconds, since the last placement."""
    followed_up: float | None = None
    regenerated: bool = False
    stopped: bool = False
    vote: float | None = None
    feedback_at: float | None = None
    """Ingest time of the newest valid event."""
    invalid: list[str] = field(default_factory=list)
    """Ids of events that are impossible in their state or carry an impossible value."""

    @property
    def undone_after_s(self) -> float | None:
        """Seconds from placement to the undo that still stands; None without one."""
        if self.placed_by is None or self.undone_by is None:
            return None
        return elapsed_s(self.placed_by, self.undone_by)


def fold(
    events: Sequence[Feedback], *, shown_bytes: int, places: Set[FeedbackType] = COMPLETION_PLACES
) -> Outcome:
    """Fold the events of one trace, in any order of arrival and free of repeats.

    `places`: event types that count as placing the text, beside an acceptance.
    """
    outcome = Outcome()
    for event in sorted(events, key=lambda e: (e.client_seq, e.client_time, e.event_id)):
        if not _apply(outcome, event, shown_bytes, places):
            outcome.invalid.append(event.event_id)
            continue
        if outcome.feedback_at is None or event.ingested_at > outcome.feedback_at:
            outcome.feedback_at = event.ingested_at
        if event.visible_ms is not None:
            outcome.visible_ms = max(event.visible_ms, outcome.visible_ms or 0.0)
    return outcome


def elapsed_s(earlier: Feedback, later: Feedback) -> float:
    """Seconds between two events of one client, by the best of its clocks that runs forward."""
    if earlier.client_monotonic_s is not None and later.client_monotonic_s is not None:
        monotonic_s = later.client_monotonic_s - earlier.client_monotonic_s
        if monotonic_s >= 0:
            return monotonic_s
    client_s = later.client_time - earlier.client_time
    return client_s if client_s >= 0 else max(0.0, later.ingested_at - earlier.ingested_at)


def _apply(outcome: Outcome, event: Feedback, shown_bytes: int, places: Set[FeedbackType]) -> bool:
    """Fold one event in; False if it is invalid."""
    match event.type:
        case "suggestion.shown":
            outcome.shown = True
        case "suggestion.accepted":
            _place(outcome, event, (0, shown_bytes), 1.0)
        case "suggestion.accepted_partially":
            return _accept_partially(outcome, event, shown_bytes)
        case "suggestion.rejected" | "suggestion.ignored":
            outcome.decision = event.type
            outcome.placed_by = outcome.undone_by = outcome.span = None
        case "edit.undone" | "edit.reverted":
            return _undo(outcome, event)
        case "edit.redone":
            was_undone, outcome.undone_by = outcome.undone_by is not None, None
            return was_undone
        case "retention.measured":
            return _measure(outcome, event)
        case _:
            if event.type in places and outcome.placed_by is None:
                outcome.placed_by = event
            return _hear(outcome, event)
    return True


def _place(outcome: Outcome, event: Feedback, span: Span, share: float) -> None:
    outcome.decision, outcome.placed_by, outcome.undone_by = event.type, event, None
    outcome.span, outcome.share, outcome.retention = span, share, {}


def _accept_partially(outcome: Outcome, event: Feedback, shown_bytes: int) -> bool:
    if event.span is not None:
        start, end = event.span
        if not 0 <= start <= end <= shown_bytes:
            return False
        _place(outcome, event, event.span, (end - start) / max(1, shown_bytes))
    elif event.value is not None and 0 <= event.value <= 1:
        _place(outcome, event, (0, int(event.value * shown_bytes + 0.5)), event.value)
    else:
        return False
    return True


def _undo(outcome: Outcome, event: Feedback) -> bool:
    if outcome.placed_by is None or outcome.undone_by is not None:
        return False
    outcome.undone_by = event
    return True


def _measure(outcome: Outcome, event: Feedback) -> bool:
    if event.value is None and (event.reason is not None or event.no_revert is not None):
        return True  # only the figures behind a value, or why there is none: nothing to learn yet
    if event.horizon_s is None or event.value is None or not 0 <= event.value <= 1:
        return False
    outcome.retention[event.horizon_s] = event.value
    return True


def _hear(outcome: Outcome, event: Feedback) -> bool:
    """Events that speak about the whole reply; those without a meaning here are valid, unused."""
    match event.type:
        case "feedback.vote":
            if event.value not in (-1, 0, 1):
                return False
            outcome.vote = event.value or None
        case "user.followed_up":
            if event.value is not None and not -1 <= event.value <= 1:
                return False
            outcome.followed_up = event.value
        case "response.regenerated":
            outcome.regenerated = True
        case "response.stopped":
            outcome.stopped = True
    return True
