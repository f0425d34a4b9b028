"""One event about a trace, as the feedback API reads it (`serving/feedback/wire.py`)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

EventType = Literal[
    "suggestion.shown",
    "suggestion.suppressed",
    "suggestion.accepted",
    "suggestion.accepted_partially",
    "suggestion.rejected",
    "suggestion.ignored",
    "hunk.accepted",
    "hunk.rejected",
    "tool.denied",
    "response.stopped",
    "edit.applied",
    "edit.undone",
    "edit.redone",
    "edit.reverted",
    "retention.measured",
    "commit.observed",
    "content.copied",
    "content.inserted",
    "user.followed_up",
    "response.regenerated",
    "feedback.vote",
    "feedback.rating",
    "session.ended",
]
Granularity = Literal["word", "line", "hunk", "other"]
Span = tuple[int, int]
"""[start, end) bytes of the shown text's UTF-8."""
Detail = str | float | bool | Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What one user did. Ids are made once, so that a retry is recognised."""

    event_id: str
    trace_id: str
    type: EventType
    client_seq: int
    """Per session, plus one an event: the order in which things happened."""
    client_time: float
    """Unix seconds."""
    client_monotonic_s: float
    """A clock that never jumps and outlives the process, but not the machine's restart."""
    feedback_token: str | None
    details: Mapping[str, Detail]
    """The fields of its type."""

    def to_json(self) -> str:
        """The wire form; fields without a value are left out."""
        fields: dict[str, Detail] = {
            "event_id": self.event_id,
            "trace_id": self.trace_id,
            "type": self.type,
            "client_seq": self.client_seq,
            "client_time": self.client_time,
            "client_monotonic_s": self.client_monotonic_s,
            "feedback_token": self.feedback_token,
            **self.details,
        }
        return json.dumps({name: value for name, value in fields.items() if value is not None})
