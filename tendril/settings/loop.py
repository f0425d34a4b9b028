"""Settings of what turns traces into better weights: signals, privacy, learner, shipper."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from tendril.settings.section import Section


class TrustSettings(Section):
    """How far one user, account or tenant may move the reward. 0 turns a limit off.

    Limits hold for each partition of the log.
    """

    window_s: float = Field(default=3_600, gt=0)
    """Length of the windows in which events are counted and detectors look."""
    max_user_events: float = Field(default=20, ge=0)
    """Traces of one user and window that count; what is beyond has weight 0."""
    max_user_share: float = Field(default=0.01, ge=0, le=1)
    """Of a window's weight. Where there are too few users for that, twice a fair share."""
    max_tenant_share: float = Field(default=0.5, ge=0, le=1)
    """The same for a tenant."""
    new_account_s: float = Field(default=7 * 86_400, ge=0)
    """Age up to which an account has weight 0."""
    probation_s: float = Field(default=28 * 86_400, ge=0)
    """Age up to which an account shares `max_probation_share` with all others as young."""
    max_probation_share: float = Field(default=0.02, ge=0, lt=1)
    founding_s: float = Field(default=7 * 86_400, ge=0)
    """Who came within this long of the first trace counts as old: a service that begins to log
    remembers nobody."""
    detectors_off: tuple[str, ...] = ()
    """Names of detectors that do not run."""


class SignalsSettings(Section):
    """From traces and feedback to episodes."""

    recipe: Path | None = None
    """TOML; None: the default recipe."""
    folder: Path = Path("signals")
    """State, one file a partition; extractors that share the work share it."""
    feedback_window_s: float = Field(default=86_400, gt=0)
    """How long a trace waits for feedback before its episode closes."""
    revise_after_s: tuple[float, ...] = (30.0, 300.0)
    """Early looks at a trace, in order: the first gives a provisional reward, later ones revise."""
    lateness_s: float = Field(default=3_600, ge=0)
    """How long after the window feedback from inside it may still be logged and revise."""
    held_out_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of sessions kept from the learner, for the gate."""
    batch_records: int = Field(default=5_000, ge=1)
    processes: int = Field(default=1, ge=1)
    """Run by `tendril up`; they share the log's partitions, so no more than those."""
    refit_every_s: float = Field(default=86_400, gt=0)
    """How often delays and bucket means are fitted anew."""
    refit_cohort_s: float = Field(default=7 * 86_400, gt=0)
    """Of which the fits are made: traces whose window was over, rewards that were final."""
    trust: TrustSettings = TrustSettings()


class TenantConsent(Section):
    """A tenant's word on its users' data, above theirs; None: each user's own."""

    train: bool | None = None
    content: bool | None = None


class PrivacySettings(Section):
    """Consent and reports."""

    tenants: dict[str, TenantConsent] = {}
    """By tenant, as in `[privacy.tenants.acme]`."""
    min_cell_users: int = Field(default=20, ge=1)
    """Slices of a report with fewer users are left out."""


class LearnerSettings(Section):
    """The online lane. Formulas: docs/architecture.md, "Learner"."""

    learning_rate: float = Field(default=2e-4, gt=0)
    adam_epsilon: float = Field(default=3e-3, gt=0)
    """Near the gradients' own size, on purpose: weights whose gradient is mostly noise then barely
    move, which spares KL and keeps deltas small (docs/measurements.md)."""
    batch_episodes: int = Field(default=96, ge=1)
    min_maturity: Literal["provisional", "revised", "final"] = "revised"
    """The first look at a trace that is as ripe as this is trained on, later ones are not."""
    kl_coefficient: float = Field(default=0.02, ge=0)
    """Of the k2 estimator in the loss, against the last shipped policy."""
    ratio_low: float = Field(default=0.5, gt=0, le=1)
    ratio_high: float = Field(default=2.0, ge=1)
    max_policy_lag: int = Field(default=3, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    baseline_half_life: float = Field(default=500, gt=0)
    """Episodes after which an observation counts half."""
    publish_every_s: float = Field(default=3_600, gt=0)
    min_steps_per_version: int = Field(default=4, ge=1)
    checkpoint_every_steps: int = Field(default=10, ge=1)
    max_numerics_gap: float = Field(default=0.01, gt=0)
    """Mean absolute log-prob difference to serving at lag 0, nats; a batch beyond it is refused."""
    num_threads: int = Field(default=1, ge=1)


class ShippingSettings(Section):
    """Store, gate and node agent."""

    store: Path = Path("store")
    node: str = "node-1"
    """This replica's name in status, ledgers and metrics."""
    node_folder: Path = Path("node-1")
    """Where the agent keeps the versions that its engine can load."""
    gate_min_episodes: int = Field(default=200, ge=1)
    """Held-out episodes below which the gate is inconclusive."""
    gate_max_episodes: int = Field(default=2_000, ge=1)
    reward_margin: float = Field(default=0.02, ge=0)
    """How much reward a decision may fall, at 95 % confidence, and still pass."""
    max_accepted_drop: float = Field(default=0.15, gt=0, lt=1)
    """Relative fall of accepted bytes a decision, at 95 % confidence, that still passes: they vary
    more than reward."""
    kl_budget: float = Field(default=0.1, gt=0)
    """Nats a token against the live version."""
    max_silence_change: float = Field(default=0.15, gt=0, le=1)
    """Absolute change of the mean probability of silence in one version."""
    keep_versions: int = Field(default=4, ge=2)
    """Versions that a node keeps on disk for rollback without a download."""
