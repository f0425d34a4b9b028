"""What became of one trace: its events, put in order and folded one by one.

Order is the client's: (client_seq, client_time). The last decision, vote, rating, class and score
win, redo takes an undo back, and an event that cannot happen in its state is set aside as invalid.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from signals.edit import COMPLETION_PLACES, DECISIONS, LATER, Edit, Key, apply, covers
from tendril.records import Feedback, FeedbackType


class Grade(NamedTuple):
    """A grader's last word; without a score it failed."""

    score: float | None
    version: str | None


class Rating(NamedTuple):
    """A value on its own scale."""

    value: float
    low: float
    high: float


@dataclass(slots=True)
class Outcome:
    """The state that `fold` builds and nobody else changes."""

    shown_by: Feedback | None = None
    """The first event that says so."""
    visible_ms: float | None = None
    edits: dict[Key, Edit] = field(default_factory=dict)
    followed_up: Feedback | None = None
    """The last one that has a class or a value."""
    regenerated: bool = False
    stopped: bool = False
    vote: float | None = None
    rating: Rating | None = None
    grades: dict[str, Grade] = field(default_factory=dict)
    ended_by: Feedback | None = None
    """The end of the session."""
    surface: str | None = None
    feedback_at: float | None = None
    """Ingest time of the newest valid event."""
    invalid: list[str] = field(default_factory=list)
    """Ids of events that are impossible in their state or carry an impossible value."""


def fold(
    events: Sequence[Feedback], *, shown_bytes: int, places: Set[FeedbackType] = COMPLETION_PLACES
) -> Outcome:
    """Fold the events of one trace, in any order of arrival and free of repeats.

    `places`: event types that count as placing the text, beside an acceptance.
    """
    outcome = Outcome()
    for event in sorted(events, key=lambda e: (e.client_seq, e.client_time, e.event_id)):
        if not _take(outcome, event, shown_bytes, places):
            outcome.invalid.append(event.event_id)
            continue
        if outcome.feedback_at is None or event.ingested_at > outcome.feedback_at:
            outcome.feedback_at = event.ingested_at
        if event.visible_ms is not None:
            outcome.visible_ms = max(event.visible_ms, outcome.visible_ms or 0.0)
        outcome.surface = event.surface or outcome.surface
    return outcome


def _take(outcome: Outcome, event: Feedback, shown_bytes: int, places: Set[FeedbackType]) -> bool:
    """Fold one event in; False if it is invalid."""
    if event.type in DECISIONS or (event.type in places and _begins(outcome, event)):
        return _decide(outcome, event, shown_bytes, places)
    if event.type in LATER:
        valid = [
            apply(edit, event, shown_bytes=shown_bytes, places=places)
            for edit in _addressed(outcome.edits, event)
        ]
        return any(valid)
    if event.type == "suggestion.shown":
        outcome.shown_by = outcome.shown_by or event
        if event.edit_id is not None or event.hunk_id is not None:
            outcome.edits.setdefault(_key(event), Edit()).shown = True
        return True
    return _hear(outcome, event)


def _begins(outcome: Outcome, event: Feedback) -> bool:
    """Whether a change to a document is the model's text going in, rather than a later change."""
    return event.type == "content.inserted" or not _reported(outcome.edits, event)


def _decide(outcome: Outcome, event: Feedback, shown_bytes: int, places: Set[FeedbackType]) -> bool:
    """A word about the whole takes back what was said about its parts."""
    key, edits = _key(event), outcome.edits
    edit = edits.get(key, Edit())
    if not apply(edit, event, shown_bytes=shown_bytes, places=places):
        return False
    edits[key] = edit
    for other in [other for other in edits if other != key]:
        is_part = event.type in DECISIONS and covers(key, other)
        if is_part or (edits[other].decision is None and covers(other, key)):
            del edits[other]
    return True


def _addressed(edits: dict[Key, Edit], event: Feedback) -> list[Edit]:
    """The edits that an event is about; a new one, which allows no undo, if none was reported."""
    return _reported(edits, event) or [edits.setdefault(_key(event), Edit())]


def _reported(edits: dict[Key, Edit], event: Feedback) -> list[Edit]:
    """The edits of that name, or parts of it, or else those that it is a part of."""
    key = _key(event)
    parts = [edit for other, edit in edits.items() if covers(key, other)]
    return parts or [edit for other, edit in edits.items() if covers(other, key)]


def _key(event: Feedback) -> Key:
    return event.candidate_id, event.edit_id, event.hunk_id


def _hear(outcome: Outcome, event: Feedback) -> bool:
    """Events that speak about the whole reply; those without a meaning here are valid, unused."""
    match event.type:
        case "feedback.vote":
            return _vote(outcome, event)
        case "feedback.rating":
            return _rate(outcome, event)
        case "user.followed_up":
            return _follow_up(outcome, event)
        case "grader.scored":
            return _grade(outcome, event)
        case "response.regenerated":
            outcome.regenerated = True
        case "response.stopped":
            outcome.stopped = True
        case "session.ended":
            outcome.ended_by = event
    return True


def _vote(outcome: Outcome, event: Feedback) -> bool:
    """0 withdraws an earlier vote."""
    if event.value not in (-1, 0, 1):
        return False
    outcome.vote = event.value or None
    return True


def _follow_up(outcome: Outcome, event: Feedback) -> bool:
    """A message that nothing judged says nothing."""
    if event.value is not None and not -1 <= event.value <= 1:
        return False
    if event.value is not None or event.reason is not None:
        outcome.followed_up = event
    return True


def _rate(outcome: Outcome, event: Feedback) -> bool:
    """A value whose scale is unknown has no meaning."""
    value, low, high = event.value, event.scale_min, event.scale_max
    if value is None or low is None or high is None or not (low <= value <= high and low < high):
        return False
    outcome.rating = Rating(value, low, high)
    return True


def _grade(outcome: Outcome, event: Feedback) -> bool:
    """A failure takes an earlier score back: the last value is never kept for it."""
    if event.grader is None or (event.value is None and event.error is None):
        return False
    score = None if event.error is not None else event.value
    outcome.grades[event.grader] = Grade(score, event.grader_version)
    return True
