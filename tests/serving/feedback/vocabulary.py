"""One valid event of every type, as a client would send it."""

from typing import Any

FIELDS: dict[str, dict[str, Any]] = {
    "suggestion.shown": {"position": 0, "slots": 3, "visible_ms": 1200.5, "candidate_id": "c1"},
    "suggestion.suppressed": {"reason": "user_is_typing"},
    "suggestion.accepted": {"num_chars": 40, "method": "tab", "visible_ms": 900},
    "suggestion.accepted_partially": {"span": [0, 12], "granularity": "word", "num_chars": 12},
    "suggestion.rejected": {"reason": "escape", "visible_ms": 400},
    "suggestion.ignored": {"reason": "typed_over"},
    "hunk.accepted": {"hunk_id": "h1", "edit_id": "e1", "span": [3, 9]},
    "hunk.rejected": {"hunk_id": "h2"},
    "tool.denied": {"tool_call_id": "call_1", "reason": "unsafe"},
    "response.stopped": {"reason": "button"},
    "edit.applied": {"added_chars": 10, "removed_chars": 2, "edit_id": "e1"},
    "edit.undone": {"edit_id": "e1"},
    "edit.redone": {},
    "edit.reverted": {"method": "git"},
    "retention.measured": {
        "horizon_s": 30, "value": 0.8, "four_gram": 0.9, "no_revert": 0.95, "arc_chars": 32,
        "total_chars": 40, "branch_changed": False,
    },
    "commit.observed": {"num_chars": 30, "total_chars": 40},
    "content.copied": {"num_chars": 40, "total_chars": 80},
    "content.inserted": {"num_chars": 40},
    "user.followed_up": {"text_ref": "0192-trace", "value": -0.3},
    "response.regenerated": {"text_ref": "0193-trace"},
    "feedback.vote": {"value": -1, "reason": "wrong"},
    "feedback.rating": {"value": 7, "scale_min": 1, "scale_max": 10},
    "grader.scored": {"grader": "pytest", "version": "9.2", "value": 1.0},
    "session.ended": {},
    "heartbeat": {},
    "consent.changed": {"user": "ada", "train_consent": False, "consent_version": "2026-05"},
    "user.deletion_requested": {"user": "ada"},
}  # fmt: skip
USER_TYPES = ("consent.changed", "user.deletion_requested")
"""They name a user instead of a trace."""


def make_typed(name: str, **overrides: Any) -> dict[str, Any]:
    """A valid event of that type, about trace t1; an override of None removes the field."""
    event: dict[str, Any] = {"event_id": f"e-{name}", "type": name, "client_seq": 1}
    event |= {"client_time": 1_000.0} | ({} if name in USER_TYPES else {"trace_id": "t1"})
    return {k: v for k, v in (event | FIELDS[name] | overrides).items() if v is not None}
