"""The vocabulary of feedback: each event type with the fields that it needs and may have.

`EVENTS` is the table. A field that its type does not have is refused, so a policy version, which
only the trace may name, never gets in; neither does prose: reasons and methods are short codes.
Meanings of the fields: `tendril.records.Feedback`.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic import model_validator as check

from serving.api.wire import Identifier
from serving.feedback.envelope import (
    Code,
    Count,
    Event,
    Number,
    Positive,
    Reference,
    Share,
    Span,
    TraceEvent,
)
from tendril.records.feedback import Granularity


class Shown(TraceEvent):
    type: Literal["suggestion.shown"]
    visible_ms: Positive | None = None
    position: Count | None = None
    slots: Count | None = None

    @check(mode="after")
    def _among_slots(self) -> "Shown":
        if self.position is not None and self.slots is not None and self.position >= self.slots:
            raise ValueError(f"expected position < slots, got {self.position} of {self.slots}")
        return self


class Suppressed(TraceEvent):
    type: Literal["suggestion.suppressed"]
    reason: Code


class Accepted(TraceEvent):
    type: Literal["suggestion.accepted"]
    value: Annotated[Share, Field(ge=1)] | None = None
    span: Span | None = None
    num_chars: Count | None = None
    method: Code | None = None
    visible_ms: Positive | None = None


class AcceptedPartially(TraceEvent):
    type: Literal["suggestion.accepted_partially"]
    value: Share | None = None
    span: Span | None = None
    num_chars: Count | None = None
    granularity: Granularity | None = None
    method: Code | None = None
    visible_ms: Positive | None = None

    @check(mode="after")
    def _says_how_much(self) -> "AcceptedPartially":
        if self.span is None and self.value is None:
            raise ValueError("expected span or value (the share of shown bytes), got neither")
        return self


class Declined(TraceEvent):
    type: Literal["suggestion.rejected", "suggestion.ignored"]
    reason: Code | None = None
    visible_ms: Positive | None = None


class HunkDecided(TraceEvent):
    type: Literal["hunk.accepted", "hunk.rejected"]
    hunk_id: Identifier
    span: Span | None = None
    num_chars: Count | None = None


class ToolDenied(TraceEvent):
    type: Literal["tool.denied"]
    tool_call_id: Identifier | None = None
    reason: Code | None = None


class Stopped(TraceEvent):
    type: Literal["response.stopped"]
    reason: Code | None = None
    visible_ms: Positive | None = None


class Edited(TraceEvent):
    type: Literal["edit.applied"]
    span: Span | None = None
    added_chars: Count | None = None
    removed_chars: Count | None = None


class TakenBack(TraceEvent):
    type: Literal["edit.undone", "edit.redone"]


class Reverted(TraceEvent):
    type: Literal["edit.reverted"]
    method: Literal["undo", "git", "manual"] | None = None


class Retention(TraceEvent):
    type: Literal["retention.measured"]
    horizon_s: Positive
    value: Share | None = None
    four_gram: Share | None = None
    no_revert: Share | None = None
    arc_chars: Count | None = None
    total_chars: Count | None = None
    branch_changed: bool | None = None
    reason: Code | None = None

    @check(mode="after")
    def _says_what_was_seen(self) -> "Retention":
        figures = (self.no_revert, self.arc_chars, self.total_chars)
        if self.value is None and self.reason is None and None in figures:
            raise ValueError(
                "expected value, or no_revert with arc_chars and total_chars, or the reason why "
                "nothing could be measured, got none of them"
            )
        return self


class Committed(TraceEvent):
    type: Literal["commit.observed"]
    num_chars: Count
    total_chars: Count | None = None
    branch_changed: bool | None = None


class Copied(TraceEvent):
    type: Literal["content.copied"]
    value: Share | None = None
    span: Span | None = None
    num_chars: Count | None = None
    total_chars: Count | None = None

    @check(mode="after")
    def _says_how_much(self) -> "Copied":
        counted = self.num_chars is not None and self.total_chars is not None
        if self.span is None and self.value is None and not counted:
            raise ValueError("expected num_chars and total_chars, or span, or value (the share)")
        return self


class Inserted(TraceEvent):
    type: Literal["content.inserted"]
    span: Span | None = None
    num_chars: Count | None = None
    total_chars: Count | None = None


class FollowedUp(TraceEvent):
    type: Literal["user.followed_up"]
    text_ref: Reference | None = None
    value: Annotated[Number, Field(ge=-1, le=1)] | None = None
    reason: Code | None = None
    """The message's class: satisfied, new_goal, neutral, clarify, rephrase, wrong_or_revert."""


class Regenerated(TraceEvent):
    type: Literal["response.regenerated"]
    text_ref: Reference | None = None


class Vote(TraceEvent):
    type: Literal["feedback.vote"]
    value: Number
    reason: Code | None = None

    @field_validator("value")
    @classmethod
    def _up_down_or_withdrawn(cls, value: float) -> float:
        if value not in (-1, 0, 1):
            raise ValueError("expected 1 (up), -1 (down) or 0 (withdrawn)")
        return value


class Rating(TraceEvent):
    type: Literal["feedback.rating"]
    value: Number
    scale_min: Number
    scale_max: Number
    reason: Code | None = None

    @check(mode="after")
    def _on_its_scale(self) -> "Rating":
        if not (self.scale_min <= self.value <= self.scale_max and self.scale_min < self.scale_max):
            raise ValueError(
                "expected scale_min <= value <= scale_max and scale_min < scale_max, got "
                f"value {self.value:g} on {self.scale_min:g} to {self.scale_max:g}"
            )
        return self


class Graded(TraceEvent):
    type: Literal["grader.scored"]
    grader: Code
    grader_version: Code = Field(alias="version")
    value: Number | None = None
    error: Code | None = None

    @check(mode="after")
    def _scored_or_failed(self) -> "Graded":
        if (self.value is None) == (self.error is None):
            raise ValueError("expected either value or error")
        return self


class SessionEvent(Event):
    """About a session. By the token of any of its replies, or by application key."""

    type: Literal["session.ended", "heartbeat"]
    trace_id: Identifier | None = None
    session_id: Identifier | None = None
    """With a key: as in the `x-tendril-session-id` header of the session's requests."""
    user: Identifier | None = None
    """With a key: as in the requests. Only its keyed hash is kept."""
    reason: Code | None = None


class ControlEvent(Event):
    """What a user decides about their data: by application key only."""

    user: Identifier


class ConsentChanged(ControlEvent):
    type: Literal["consent.changed"]
    train_consent: bool | None = None
    content_consent: bool | None = None
    consent_version: Code | None = None

    @check(mode="after")
    def _says_which(self) -> "ConsentChanged":
        if self.train_consent is None and self.content_consent is None:
            raise ValueError("expected train_consent or content_consent, got neither")
        return self


class DeletionRequested(ControlEvent):
    type: Literal["user.deletion_requested"]


EVENTS: tuple[type[Event], ...] = (
    Shown, Suppressed, Accepted, AcceptedPartially, Declined, HunkDecided, ToolDenied, Stopped,
    Edited, TakenBack, Reverted, Retention, Committed, Copied, Inserted, FollowedUp, Regenerated,
    Vote, Rating, Graded, SessionEvent, ConsentChanged, DeletionRequested,
)  # fmt: skip
EVENT_BY_TYPE: dict[str, type[Event]] = {
    name: event for event in EVENTS for name in get_args(event.model_fields["type"].annotation)
}


class FeedbackBatch(BaseModel):
    """Several events at once; each is accepted or refused on its own."""

    model_config = ConfigDict(extra="forbid")
    events: list[dict[str, Any]] = Field(min_length=1, max_length=500)


def json_schema() -> dict[str, Any]:
    """JSON schema of one event. Rules between fields, which it cannot say, are not in it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tendril feedback event",
        "oneOf": [event.model_json_schema() for event in EVENTS],
    }
