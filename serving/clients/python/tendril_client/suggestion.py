"""A reply as its user met it: shown, decided upon, and what came after.

Order is checked where it is made: an event that cannot happen in the suggestion's state raises
`IllegalLifecycle` and is not sent, so a client's mistake shows in its own tests. Allowed:

    new -> shown -> accepted | accepted_partially (again, growing) | rejected | ignored
    accepted* | inserted -> undone or reverted <-> redone
    edited, retained and committed after a placement; all else at any time
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from uuid import uuid4

from tendril_client.events import Detail, Event, EventType, Granularity, Span
from tendril_client.outbox import Outbox
from tendril_client.retention import Retention

State = Literal["new", "shown", "placed", "undone", "declined"]


class IllegalLifecycle(ValueError):
    """An event that is impossible in the suggestion's state."""


class Clock(NamedTuple):
    """Where times come from. The monotonic clock counts from the machine's start."""

    wall_s: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic


SYSTEM_CLOCK = Clock()


def byte_span(text: str, start: int, end: int) -> Span:
    """Characters [start, end) of the shown text as the bytes of its UTF-8."""
    return len(text[:start].encode()), len(text[:end].encode())


@dataclass(slots=True, kw_only=True)
class Suggestion:
    """Reports on one reply. Methods return the event's id and never wait for the network."""

    trace_id: str
    policy_version: int
    """Of the weights that sampled the first token."""
    session_id: str
    endpoint: str
    """Absolute URL of the feedback API."""
    feedback_token: str | None
    outbox: Outbox = field(repr=False)
    clock: Clock = SYSTEM_CLOCK
    state: State = "new"

    def shown(
        self,
        *,
        visible_ms: float | None = None,
        position: int | None = None,
        slots: int | None = None,
    ) -> str:
        """The user sees it, at `position` of `slots`. Report again once `visible_ms` is known."""
        self._require("suggestion.shown", "new", "shown")
        self.state = "shown"
        return self._send("suggestion.shown", visible_ms=visible_ms, position=position, slots=slots)

    def suppressed(self, reason: str) -> str:
        """The client kept it from the user. A reason is a code, as everywhere, not prose."""
        self._require("suggestion.suppressed", "new")
        self.state = "declined"
        return self._send("suggestion.suppressed", reason=reason)

    def accepted(self, *, method: str | None = None, visible_ms: float | None = None) -> str:
        """All of it went into the user's text; also after partial acceptances, as the last word."""
        self._require("suggestion.accepted", "shown", "placed")
        self.state = "placed"
        return self._send("suggestion.accepted", method=method, visible_ms=visible_ms)

    def accepted_partially(
        self,
        *,
        span: Span | None = None,
        share: float | None = None,
        granularity: Granularity | None = None,
        visible_ms: float | None = None,
    ) -> str:
        """All that is accepted so far: `span` in bytes (see `byte_span`), or a share in [0, 1]."""
        if (span is None) == (share is None):
            raise TypeError("accepted_partially: expected either span or share")
        self._require("suggestion.accepted_partially", "shown", "placed")
        _check_share("accepted_partially", share)
        self.state = "placed"
        return self._send(
            "suggestion.accepted_partially",
            span=span,
            value=share,
            granularity=granularity,
            visible_ms=visible_ms,
        )

    def rejected(self, *, reason: str | None = None, visible_ms: float | None = None) -> str:
        """The user said no."""
        return self._decline("suggestion.rejected", reason, visible_ms)

    def ignored(self, *, reason: str | None = None, visible_ms: float | None = None) -> str:
        """The user typed on, or let it time out."""
        return self._decline("suggestion.ignored", reason, visible_ms)

    def hunk_accepted(self, hunk_id: str, *, span: Span | None = None) -> str:
        """One of the reply's changes to a file."""
        return self._send("hunk.accepted", hunk_id=hunk_id, span=span)

    def hunk_rejected(self, hunk_id: str, *, span: Span | None = None) -> str:
        return self._send("hunk.rejected", hunk_id=hunk_id, span=span)

    def undone(self) -> str:
        """What was accepted was taken back by undo."""
        self._require("edit.undone", "placed")
        self.state = "undone"
        return self._send("edit.undone")

    def reverted(self, method: Literal["undo", "git", "manual"]) -> str:
        """What was accepted was taken back in another way."""
        self._require("edit.reverted", "placed")
        self.state = "undone"
        return self._send("edit.reverted", method=method)

    def redone(self) -> str:
        self._require("edit.redone", "undone")
        self.state = "placed"
        return self._send("edit.redone")

    def edited(
        self,
        *,
        span: Span | None = None,
        added_chars: int | None = None,
        removed_chars: int | None = None,
    ) -> str:
        """The accepted text was changed, at `span` of the shown text."""
        self._require("edit.applied", "placed", "undone")
        return self._send(
            "edit.applied", span=span, added_chars=added_chars, removed_chars=removed_chars
        )

    def retained(self, horizon_s: float, share: float | Retention) -> str:
        """Share in [0, 1] of the accepted text that is still there `horizon_s` after acceptance."""
        self._require("retention.measured", "placed", "undone")
        details = share.details() if isinstance(share, Retention) else {"value": share}
        _check_share("retained", details["value"])
        return self._send("retention.measured", horizon_s=horizon_s, **details)

    def not_observable(self, horizon_s: float, reason: str) -> str:
        """Retention cannot be measured at that time, for example `document_closed`."""
        self._require("retention.measured", "placed", "undone")
        return self._send("retention.measured", horizon_s=horizon_s, reason=reason)

    def committed(self, num_chars: int, total_chars: int) -> str:
        """Characters of the accepted text that a commit holds, of all accepted."""
        self._require("commit.observed", "placed", "undone")
        return self._send("commit.observed", num_chars=num_chars, total_chars=total_chars)

    def copied(self, *, span: Span | None = None, share: float | None = None) -> str:
        """Copied to the clipboard, in whole (share 1) or in part."""
        if (span is None) == (share is None):
            raise TypeError("copied: expected either span or share")
        _check_share("copied", share)
        return self._send("content.copied", span=span, value=share)

    def inserted(self, *, span: Span | None = None) -> str:
        """Put into a document from elsewhere, such as a chat window."""
        if self.state != "undone":
            self.state = "placed"
        return self._send("content.inserted", span=span)

    def followed_up(self, sentiment: float | None = None, *, text_ref: str | None = None) -> str:
        """The user wrote again (`text_ref`: the next trace); `sentiment` in [-1, 1] if judged."""
        return self._send("user.followed_up", value=sentiment, text_ref=text_ref)

    def regenerated(self) -> str:
        return self._send("response.regenerated")

    def stopped(self, *, reason: str | None = None) -> str:
        return self._send("response.stopped", reason=reason)

    def tool_denied(self, tool_call_id: str, *, reason: str | None = None) -> str:
        return self._send("tool.denied", tool_call_id=tool_call_id, reason=reason)

    def voted(self, vote: Literal[-1, 0, 1], *, reason: str | None = None) -> str:
        """0 withdraws an earlier vote."""
        return self._send("feedback.vote", value=vote, reason=reason)

    def rated(self, value: float, *, scale: tuple[float, float]) -> str:
        """`scale`: the lowest and the highest value there is, as 3 means little without them."""
        low, high = scale
        if not low <= value <= high or low >= high:
            raise ValueError(f"rated: expected a value on the scale {scale}, got {value}")
        return self._send("feedback.rating", value=value, scale_min=low, scale_max=high)

    def session_ended(self) -> str:
        return self._send("session.ended")

    def _decline(self, event_type: EventType, reason: str | None, visible_ms: float | None) -> str:
        self._require(event_type, "shown")
        self.state = "declined"
        return self._send(event_type, reason=reason, visible_ms=visible_ms)

    def _require(self, event_type: EventType, *states: State) -> None:
        if self.state not in states:
            expected = " or ".join(states)
            raise IllegalLifecycle(
                f"trace {self.trace_id}: {event_type}: expected a suggestion that is {expected}, "
                f"got one that is {self.state}"
            )

    def _send(self, event_type: EventType, **details: Detail) -> str:
        event = Event(
            event_id=str(uuid4()),
            trace_id=self.trace_id,
            type=event_type,
            client_seq=self.outbox.next_seq(self.session_id),
            client_time=self.clock.wall_s(),
            client_monotonic_s=self.clock.monotonic_s(),
            feedback_token=self.feedback_token,
            details=details,
        )
        self.outbox.put(event, self.endpoint)
        return event.event_id


def _check_share(name: str, share: float | None) -> None:
    if share is not None and not 0 <= share <= 1:
        raise ValueError(f"{name}: expected a share in [0, 1], got {share}")
