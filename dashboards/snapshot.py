"""What a person sees of the loop: one immutable value for the terminal, the page and the report.

Times are Unix seconds; None means not observed yet. Everything here can be written as JSON.
"""

from typing import Literal

import msgspec

from dashboards.spread import Spread
from dashboards.tally import Rates
from tendril.records import Check


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every part."""


class Traffic(View, frozen=True, kw_only=True):
    """Decisions served to people; simulated ones (lane offline) are counted apart."""

    num_decisions: int
    per_second: float
    """Over the last 10 whole seconds."""
    num_failed: int
    """Finish reason `error`."""
    num_failed_recently: int
    """In the last 5 minutes."""
    num_offline: int
    num_feedback: int
    num_episodes_train: int
    num_episodes_held_out: int
    outcomes: dict[str, int]
    """Episodes by outcome."""
    num_repeats: dict[str, int]
    """By kind: records seen again and not counted again."""
    untrainable: dict[str, int]
    """Decisions that the learner must not use, by reason."""


class Curves(View, frozen=True, kw_only=True):
    """Rates by the time of the decision, as columns of one length."""

    bin_s: float
    at: tuple[float, ...]
    """Start of each bin; bins without a decision are absent."""
    num_decisions: tuple[int, ...]
    shown_rate: tuple[float | None, ...]
    acceptance: tuple[float | None, ...]
    reward_per_decision: tuple[float | None, ...]
    accepted_bytes_per_decision: tuple[float | None, ...]


class Mark(View, frozen=True, kw_only=True):
    """A moment when another version began to serve."""

    at: float
    policy_version: int
    """The version that serves from then on."""
    kind: Literal["promoted", "rolled_back"]


class VersionView(View, frozen=True, kw_only=True):
    """One policy version: its life so far, its gate, its delta, its swap, its results."""

    policy_version: int
    parent: int | None
    state: str
    """Newest of `tendril.records.ReleaseState`."""
    live: bool
    state_at: float
    reason: str
    published_at: float | None
    live_at: float | None
    """First acknowledgement by a serving node."""
    verdict: Literal["pass", "fail", "inconclusive"] | None
    checks: tuple[Check, ...]
    delta_bytes: int | None
    full_bytes: int | None
    delta_ratio: float | None
    """Full over delta: how many times smaller the delta is."""
    swap_pause_ms: float | None
    """The longest of its swaps."""
    feedback_to_served_s: float | None
    """From the newest feedback trained on to `live_at`."""
    num_steps: int
    num_train_episodes: int
    rates: Rates


class VersionCounts(View, frozen=True, kw_only=True):
    """Trained versions by what ever became of them; the base model is not counted."""

    published: int
    shipped: int
    held: int
    rolled_back: int


class NodeView(View, frozen=True, kw_only=True):
    """One serving replica."""

    node: str
    policy_version: int
    state: str
    detail: str
    versions_behind: int
    """Versions between this node's and the live one; 0 where it serves the live one."""
    at: float
    age_s: float
    num_running: int
    num_waiting: int
    refusal: str
    """Why it last refused an update; empty where it never did."""
    refused_s: float | None
    """How long ago that was."""
    refusing: bool
    """Nothing was swapped since, and it serves another version than the live one."""


class LedgerLine(View, frozen=True, kw_only=True):
    """One kind of record in one process: what was read and what became of it."""

    process: str
    node: str
    """Which serving node, where there are several such processes; else empty."""
    kind: str
    at: float
    read: int
    outcomes: dict[str, int]
    balanced: bool


class Stage(View, frozen=True, kw_only=True):
    """One hop of the loop and how far it lags behind the hop that feeds it."""

    name: Literal["request", "feedback", "episode", "trained", "live"]
    at: float | None
    age_s: float | None
    lag_s: float | None
    """Behind the hop before it; for `request` behind now."""
    limit_s: float
    level: Literal["none", "fresh", "late", "stale"]


class Health(View, frozen=True, kw_only=True):
    """The verdict in one word, with every reason."""

    level: Literal["waiting", "healthy", "degraded", "failing"]
    problems: tuple[str, ...]


class LoopSnapshot(View, frozen=True, kw_only=True):
    """The whole loop at one moment."""

    at: float
    log_at: float | None
    """When the newest record that was read had been appended."""
    health: Health
    stages: tuple[Stage, ...]
    traffic: Traffic
    total: Rates
    base: Rates | None
    """Of the oldest version that served."""
    live: Rates | None
    base_version: int | None
    live_version: int | None
    live_since: float | None
    newest_version: int | None
    curves: Curves
    marks: tuple[Mark, ...]
    versions: tuple[VersionView, ...]
    """Newest first, bounded."""
    counts: VersionCounts
    swap_pause_ms: Spread
    feedback_to_served_s: Spread
    delta_bytes: Spread
    delta_ratio: Spread
    nodes: tuple[NodeView, ...]
    ledger: tuple[LedgerLine, ...]
    ledger_balanced: bool | None
    """None before any process has reported."""
    num_dead_letters: int
    num_unreadable: int
    """Records that this view could not read."""
