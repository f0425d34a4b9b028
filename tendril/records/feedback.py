"""Feedback: one thing somebody did about a trace, or about a session or user as a whole."""

from typing import Literal

from tendril.records.base import Record

FeedbackType = Literal[
    # Exposure
    "suggestion.shown",
    "suggestion.suppressed",
    # Decision
    "suggestion.accepted",
    "suggestion.accepted_partially",
    "suggestion.rejected",
    "suggestion.ignored",
    "hunk.accepted",
    "hunk.rejected",
    "tool.denied",
    "response.stopped",
    # After
    "edit.applied",
    "edit.undone",
    "edit.redone",
    "edit.reverted",
    "retention.measured",
    "commit.observed",
    # Use
    "content.copied",
    "content.inserted",
    # Talk
    "user.followed_up",
    "response.regenerated",
    # Explicit
    "feedback.vote",
    "feedback.rating",
    # Graders
    "grader.scored",
    # Sessions and control
    "session.ended",
    "heartbeat",
    "consent.changed",
    "user.deletion_requested",
]
Granularity = Literal["word", "line", "hunk", "other"]


class Feedback(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a person, client or grader did.

    It never names a policy version: that comes from the trace. It holds no free text: a follow-up
    is named by a reference, a reason is a code. Which type has which fields: serving/feedback/wire.
    """

    TOPIC = "feedback"
    event_id: str
    """Made once by the client and kept on retry: repeats are dropped by it."""
    trace_id: str | None = None
    """None: about the session, or the user, as a whole."""
    session_id: str
    tenant: str
    user_key: str
    type: FeedbackType
    value: float | None = None
    """By type: share of shown bytes accepted or copied, retention in [0, 1], vote in {-1, 0, 1},
    rating on its scale, follow-up in [-1, 1], a grader's score."""
    span: tuple[int, int] | None = None
    """[start, end) byte offsets in the shown text that the event is about."""
    horizon_s: float | None = None
    """`retention.measured`: seconds after acceptance at which it was measured."""
    visible_ms: float | None = None
    candidate_id: str | None = None
    """Which of several texts shown side by side."""
    edit_id: str | None = None
    hunk_id: str | None = None
    position: int | None = None
    """Place among `slots` places shown, from 0."""
    slots: int | None = None
    method: str | None = None
    """How it was done, a code: tab, click, undo, git, manual."""
    reason: str | None = None
    """Why, a code such as `typed_over`; never prose."""
    granularity: Granularity | None = None
    num_chars: int | None = None
    """Characters accepted, copied, inserted or kept, out of `total_chars`."""
    total_chars: int | None = None
    added_chars: int | None = None
    removed_chars: int | None = None
    four_gram: float | None = None
    """Shared character 4-grams of the accepted and the present text, in [0, 1]."""
    no_revert: float | None = None
    """1 minus the share of the change that was taken back, in [0, 1]."""
    arc_chars: int | None = None
    """Accepted and retained: of `total_chars` inserted, those never modified since."""
    branch_changed: bool | None = None
    """Whether the repository's branch changed since the acceptance."""
    text_ref: str | None = None
    """Where the text of a follow-up is, for example a trace id."""
    tool_call_id: str | None = None
    scale_min: float | None = None
    scale_max: float | None = None
    grader: str | None = None
    grader_version: str | None = None
    error: str | None = None
    """Error class of a grader that failed; then there is no value."""
    train_consent: bool | None = None
    content_consent: bool | None = None
    consent_version: str | None = None
    """Of the wording that the user agreed to."""
    surface: str | None = None
    """Where it happened, a code: editor, chat, terminal."""
    client: str | None = None
    """Program and version that reported it."""
    vocabulary: int = 1
    """Version of the client's event vocabulary."""
    client_seq: int
    """Per session, plus one an event: the order in which the client did things."""
    client_time: float
    client_monotonic_s: float | None = None
    ingested_at: float
