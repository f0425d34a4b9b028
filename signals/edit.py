"""One edit, or one hunk of it, on its way: shown, decided, and what then became of it.

    shown -> accepted | rejected | ignored        the last decision wins
    placed -> undone or reverted <-> redone       placed: accepted, or put there by the application
    placed -> measured, committed, changed

An event that cannot happen in the edit's state leaves it as it is and is reported as invalid.
"""

import math
from collections.abc import Set
from dataclasses import dataclass, field

from signals.spans import Span
from tendril.records import Feedback, FeedbackType

Key = tuple[str | None, str | None, str | None]
"""(candidate_id, edit_id, hunk_id); None: all of them."""
COMPLETION_PLACES: Set[FeedbackType] = frozenset()
CHAT_PLACES: Set[FeedbackType] = frozenset({"edit.applied", "content.inserted"})
DECISIONS: Set[FeedbackType] = frozenset({
    "suggestion.accepted", "suggestion.accepted_partially", "suggestion.rejected",
    "suggestion.ignored", "hunk.accepted", "hunk.rejected",
})  # fmt: skip
ACCEPTANCES: Set[FeedbackType] = frozenset(
    {"suggestion.accepted", "suggestion.accepted_partially", "hunk.accepted"}
)
LATER: Set[FeedbackType] = frozenset({
    "edit.applied", "edit.undone", "edit.redone", "edit.reverted", "retention.measured",
    "commit.observed",
})  # fmt: skip
CENSORING = frozenset({
    "file_deleted", "file_closed", "document_closed", "branch_changed", "branch_switched",
    "session_over", "session_ended", "workspace_closed",
})  # fmt: skip
"""Reasons that say that nothing can be observed any more, whatever became of the text."""


@dataclass(slots=True)
class Edit:
    """The state that `apply` builds and nobody else changes."""

    shown: bool = False
    decision: Feedback | None = None
    share: float = 0.0
    """Accepted share of what was offered."""
    span: Span | None = None
    """The accepted bytes; None: nothing, or it was not said which."""
    size: int | None = None
    """Characters, or bytes, that were offered; None: unknown."""
    placed_by: Feedback | None = None
    """The event that put the model's text into the user's document, if it was not rejected."""
    undone_by: Feedback | None = None
    kept: dict[float, float] = field(default_factory=dict)
    """Measured retention by horizon in seconds, since the last placement."""
    unobservable: dict[float, str] = field(default_factory=dict)
    """Why there is no measurement, by horizon."""
    committed: float | None = None
    """Share of the placed text that a commit holds."""
    changed: list[Span] = field(default_factory=list)
    """Bytes that the user changed after placement."""

    @property
    def is_accepted(self) -> bool:
        """Whether a person said yes to it: not merely an application put it there."""
        return self.decision is not None and self.decision.type in ACCEPTANCES


def apply(edit: Edit, event: Feedback, *, shown_bytes: int, places: Set[FeedbackType]) -> bool:
    """Take one event in; False if it is impossible now or carries an impossible value."""
    match event.type:
        case "suggestion.shown":
            edit.shown = True
        case "suggestion.accepted" | "hunk.accepted":
            return _accept(edit, event, shown_bytes)
        case "suggestion.accepted_partially":
            return _accept_partially(edit, event, shown_bytes)
        case "suggestion.rejected" | "suggestion.ignored" | "hunk.rejected":
            return _decline(edit, event, shown_bytes)
        case "edit.undone" | "edit.reverted":
            return _undo(edit, event)
        case "edit.redone":
            was_undone, edit.undone_by = edit.undone_by is not None, None
            return was_undone
        case "retention.measured":
            return _measure(edit, event)
        case "commit.observed":
            return _commit(edit, event)
        case _:
            _insert_or_change(edit, event, shown_bytes, places)
    return True


def _accept(edit: Edit, event: Feedback, shown_bytes: int) -> bool:
    span = event.span
    if span is not None and not _is_inside(span, shown_bytes):
        return False
    if span is None and _is_whole(event):
        span = (0, shown_bytes)
    edit.size = _size(event, edit.size if span is None else span[1] - span[0])
    _place(edit, event, span, 1.0)
    return True


def _accept_partially(edit: Edit, event: Feedback, shown_bytes: int) -> bool:
    if event.span is not None:
        if not _is_inside(event.span, shown_bytes):
            return False
        start, end = event.span
        _place(edit, event, event.span, (end - start) / max(1, shown_bytes))
    elif event.value is not None and 0 <= event.value <= 1:
        _place(edit, event, (0, int(event.value * shown_bytes + 0.5)), event.value)
    else:
        return False
    edit.size = shown_bytes
    return True


def _decline(edit: Edit, event: Feedback, shown_bytes: int) -> bool:
    if event.span is not None and not _is_inside(event.span, shown_bytes):
        return False
    edit.decision, edit.placed_by, edit.undone_by, edit.span = event, None, None, None
    edit.share = 0.0
    edit.size = _size(event, edit.size or (shown_bytes if _is_whole(event) else None))
    return True


def _place(edit: Edit, event: Feedback, span: Span | None, share: float) -> None:
    edit.decision, edit.placed_by, edit.undone_by = event, event, None
    edit.span, edit.share = span, share
    edit.kept, edit.unobservable, edit.committed, edit.changed = {}, {}, None, []


def _insert_or_change(
    edit: Edit, event: Feedback, shown_bytes: int, places: Set[FeedbackType]
) -> None:
    """The application put the text into a document, or the user changed what is there."""
    if edit.placed_by is None:
        if event.type in places:
            edit.decision, edit.placed_by, edit.share = event, event, 1.0
            edit.size = _size(event, event.added_chars or edit.size)
    elif event.span is not None and _is_inside(event.span, shown_bytes):
        edit.changed.append(event.span)


def _undo(edit: Edit, event: Feedback) -> bool:
    if edit.placed_by is None or edit.undone_by is not None:
        return False
    edit.undone_by = event
    return True


def _measure(edit: Edit, event: Feedback) -> bool:
    """k = no_revert * ARC / inserted characters (anchors 3); a client's own value may cap it."""
    horizon_s = event.horizon_s
    if horizon_s is None:
        return False
    if event.reason in CENSORING or event.branch_changed:
        edit.unobservable[horizon_s] = event.reason or "branch_changed"
        return True
    kept = _kept_share(event)
    if kept is None:
        if event.value is None and event.reason is not None:
            edit.unobservable[horizon_s] = event.reason
            return True
        return False
    edit.kept[horizon_s] = kept
    edit.size = edit.size or event.total_chars
    return True


def _kept_share(event: Feedback) -> float | None:
    """None if the event carries none, or an impossible one."""
    shares = [event.value] if event.value is not None else []
    if event.no_revert is not None and event.arc_chars is not None and event.total_chars:
        shares.append(event.no_revert * event.arc_chars / event.total_chars)
    return min(shares) if shares and all(0 <= share <= 1 for share in shares) else None


def _commit(edit: Edit, event: Feedback) -> bool:
    inserted = event.total_chars or edit.size
    if event.num_chars is None or event.num_chars < 0:
        return False
    if event.branch_changed or not inserted:
        return True
    if event.num_chars > inserted:
        return event.total_chars is None
    edit.committed = event.num_chars / inserted
    return True


def _size(event: Feedback, otherwise: int | None) -> int | None:
    if event.span is not None:
        return event.span[1] - event.span[0]
    return otherwise if event.num_chars is None else event.num_chars


def _is_whole(event: Feedback) -> bool:
    return event.edit_id is None and event.hunk_id is None


def _is_inside(span: Span, shown_bytes: int) -> bool:
    return 0 <= span[0] <= span[1] <= shown_bytes


def covers(whole: Key, part: Key) -> bool:
    """Whether `part` is `whole` itself or belongs to it."""
    return all(name is None or name == other for name, other in zip(whole, part, strict=True))


def shares(edits: dict[Key, Edit]) -> list[float]:
    """Each edit's weight among those of a trace: what it offered, less its parts named apart.

    Edits of unknown size count like the mean of the known ones. Weights need not sum to 1.
    """
    if len(edits) == 1:
        return [1.0]
    known = [edit.size for edit in edits.values() if edit.size]
    mean = sum(known) / len(known) if known else 1.0
    own = {key: float(edit.size or mean) for key, edit in edits.items()}
    left = [
        max(0.0, size - math.fsum(own[o] for o in own if o != key and covers(key, o)))
        for key, size in own.items()
    ]
    return left if any(left) else [1.0] * len(own)
