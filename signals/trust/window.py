"""Window: all that the detectors of one stretch of time are given, and what they remember."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from signals.trust.columns import Events, FloatArray, Traces

MEMORY_WINDOWS = 168
"""A week of hours."""
History = Mapping[str, tuple[float, ...]]
"""By figure: its value in each earlier window, oldest first, at most `MEMORY_WINDOWS`."""


class FollowUpText(NamedTuple):
    """What a user wrote next: a judge's input, read with consent, never logged."""

    trace_id: str
    account: str
    text: str


class Canary(NamedTuple):
    """A score that a grader gave to an item whose score is known."""

    grader: str
    item: str
    expected: float
    got: float | None
    """None: the grader failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows of [`since`, `until`), on the log's clock."""

    since: float
    until: float
    traces: Traces
    events: Events
    history: History = field(default_factory=dict)
    ledger: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By kind, the fates of what was read in this window: differences of two ledgers."""
    arm_shares: Mapping[str, float] = field(default_factory=dict)
    """The experiment's arms with the shares they should have; empty: no experiment."""
    propensity_floor: float = 0.01
    reference: Mapping[str, FloatArray] = field(default_factory=dict)
    """By name, a sample of numbers as they were when all was well."""
    sample: Mapping[str, FloatArray] = field(default_factory=dict)
    """By the same names, those of this window."""
    known_values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Codes by field (`type`, `surface`, ...), as the schema has them."""
    seen_values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    texts: Sequence[FollowUpText] = ()
    grader_reference: Mapping[str, FloatArray] = field(default_factory=dict)
    """By grader, earlier scores of the same policy on the same kind of prompts."""
    canaries: Sequence[Canary] = ()
    max_user_share: float = 0.01
    max_tenant_share: float = 0.5


def remembered(history: History, figures: Mapping[str, float]) -> dict[str, tuple[float, ...]]:
    """The history with one more window; what was not observed in it is not remembered."""
    known = {name: past[-MEMORY_WINDOWS:] for name, past in history.items()}
    for name, value in figures.items():
        if value == value:  # not NaN
            known[name] = (*known.get(name, ()), value)[-MEMORY_WINDOWS:]
    return known
