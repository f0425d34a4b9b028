"""Feedback: one thing somebody did about a trace."""

from typing import Literal

from tendril.records.base import Record

FeedbackType = Literal[
    "suggestion.shown",
    "suggestion.accepted",
    "suggestion.accepted_partially",
    "suggestion.rejected",
    "suggestion.ignored",
    "edit.applied",
    "edit.undone",
    "edit.redone",
    "edit.reverted",
    "retention.measured",
    "content.copied",
    "content.inserted",
    "user.followed_up",
    "response.regenerated",
    "response.stopped",
    "feedback.vote",
    "feedback.rating",
    "grader.scored",
    "session.ended",
]


class Feedback(Record, frozen=True, kw_only=True):
    """One thing that a person, client or grader did about a trace.

    It never names a policy version: that comes from the trace.
    """

    TOPIC = "feedback"
    event_id: str
    """Made once by the client and kept on retry: repeats are dropped by it."""
    trace_id: str
    session_id: str
    tenant: str
    user_key: str
    type: FeedbackType
    value: float | None = None
    """Meaning by type: share of shown bytes accepted, retention in [0, 1], vote in {-1, 0, 1}."""
    span: tuple[int, int] | None = None
    """[start, end) byte offsets in the shown text that the event is about."""
    horizon_s: float | None = None
    """`retention.measured`: seconds after acceptance at which it was measured."""
    visible_ms: float | None = None
    client_seq: int
    """Per session, plus one an event: the order in which the client did things."""
    client_time: float
    client_monotonic_s: float | None = None
    ingested_at: float
