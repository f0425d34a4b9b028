"""Quarantine: one decision to keep rows out of training, or to let them back in."""

from typing import Literal

from tendril.records.base import Record

QuarantineScope = Literal["user", "tenant", "trace", "policy", "grader"]
QuarantineState = Literal["placed", "released"]


class Quarantine(Record, frozen=True, kw_only=True):
    """One event in the life of a quarantine. What is open is the fold of these events.

    Rows of the scope whose trace was served in [`since`, `until`) are kept, flagged, and leave
    training until the quarantine is released.
    """

    TOPIC = "quarantine"
    quarantine_id: str
    """Hash of detector, scope and `since`: the same finding, made twice, is one quarantine."""
    state: QuarantineState
    scope: QuarantineScope
    scope_id: str
    """A user is named by tenant and user key, a policy by its version: see signals.trust."""
    since: float
    until: float | None = None
    """None: until it is released."""
    detector: str
    """Which detector found it, or `manual`."""
    figure: float | None = None
    """What was measured; None where a person decided."""
    limit: float | None = None
    """The limit that the figure crossed."""
    reason: str
    """Why, for people; never a user's text."""
    actor: str
    at: float
