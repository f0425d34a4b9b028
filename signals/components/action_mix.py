"""What a policy does, apart from how well it is liked: figures for detectors, never a reward.

A model that asks back instead of editing, shows less or breaks its tool calls can look well
liked; these rates show it (anchors 1.2, hard rule 4).
"""

from collections.abc import Iterable
from typing import NamedTuple

from signals.outcome import Outcome
from tendril.records import Trace


class Action(NamedTuple):
    """One decision's part."""

    is_chat: bool
    is_shown: bool
    is_edit: bool
    is_clarified: bool
    """The user asked what was meant."""
    is_judged: bool
    """The user wrote again, and the message has a class."""
    num_tool_calls: int
    num_invalid_tool_calls: int
    shown_bytes: int


class ActionMix(NamedTuple):
    """Rates over decisions; None where there was nothing to rate."""

    num_decisions: int
    show_rate: float | None
    edit_rate: float | None
    """Chat turns with an edit or a hunk, over chat turns."""
    clarify_rate: float | None
    """Over follow-ups that have a class."""
    invalid_tool_call_rate: float | None
    mean_shown_bytes: float | None
    """Of what was shown."""


def action_of(trace: Trace, outcome: Outcome) -> Action:
    follow_up = outcome.followed_up
    return Action(
        is_chat=trace.route == "chat",
        is_shown=not trace.suppressed,
        is_edit=bool(outcome.edits),
        is_clarified=follow_up is not None and follow_up.reason == "clarify",
        is_judged=follow_up is not None and follow_up.reason is not None,
        num_tool_calls=len(trace.tool_calls),
        num_invalid_tool_calls=sum(not call.valid for call in trace.tool_calls),
        shown_bytes=sum(trace.token_bytes),
    )


def action_mix(actions: Iterable[Action]) -> ActionMix:
    actions = list(actions)
    chat = [action for action in actions if action.is_chat]
    shown = [action for action in actions if action.is_shown]
    return ActionMix(
        num_decisions=len(actions),
        show_rate=_ratio(len(shown), len(actions)),
        edit_rate=_ratio(sum(action.is_edit for action in chat), len(chat)),
        clarify_rate=_ratio(
            sum(action.is_clarified for action in actions),
            sum(action.is_judged for action in actions),
        ),
        invalid_tool_call_rate=_ratio(
            sum(action.num_invalid_tool_calls for action in actions),
            sum(action.num_tool_calls for action in actions),
        ),
        mean_shown_bytes=_ratio(sum(action.shown_bytes for action in shown), len(shown)),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
