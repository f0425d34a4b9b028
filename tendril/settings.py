"""Every setting of every process, typed, in one place.

Read from `tendril.toml`, then overridden by environment variables such as
`TENDRIL_SERVING__PORT=8000`. Unknown keys fail. `tendril config` prints the result and where
each value came from.
"""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

PACKAGED_CHECKPOINT = Path(__file__).parent.parent / "offline_rl" / "autocomplete" / "base_model"


class InvalidSettings(ValueError):
    """The settings could not be read as such; names the file or the variable."""


EngineName = Literal["torch", "vllm"]
Origin = Annotated[str, StringConstraints(pattern=r"^(\*|https?://[^/?#\s]+)$")]


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LogSettings(Section):
    """The event log."""

    kind: Literal["sqlite"] = "sqlite"
    path: Path = Path("log.db")
    """Below the workspace unless absolute."""


class ServingSettings(Section):
    """A serving node: recorder and engine, behind the gateway."""

    host: str = "127.0.0.1"
    port: int = Field(default=8002, ge=0, le=65535)
    admin_port: int = Field(default=8001, ge=0, le=65535)
    """Loopback only: the node agent's door to the engine."""
    engine: EngineName = "torch"
    """`torch` for a laptop, `vllm` for production."""
    vllm_args: tuple[str, ...] = ()
    """More arguments for vLLM's server, such as `--tensor-parallel-size`, `8`; they win."""
    model_name: str = "tendril"
    checkpoint: Path = PACKAGED_CHECKPOINT
    """Hugging Face folder that version 1 starts from; default: the autocomplete base model."""
    max_context_tokens: int = Field(default=256, ge=8)
    max_running: int = Field(default=32, ge=1)
    """Requests decoded together."""
    max_waiting: int = Field(default=256, ge=1)
    """In each lane; beyond it requests are refused with 429."""
    lent_slots: int = Field(default=4, ge=0)
    """How many offline requests may run at once, in slots that online ones do not need."""
    folder: Path = Path("serving")
    """Spool and scratch files of this replica; replicas that share a workspace need one each, as
    they need a `shipping.node` and a `shipping.node_folder` each."""
    max_spooled: int = Field(default=100_000, ge=1)
    """Records that may wait for the event log; beyond it requests are refused with 503."""
    max_body_bytes: int = Field(default=256_000, ge=1024)
    silence_token: str | None = "<|silence|>"
    """As first token it means: show nothing. None where the model has no such token."""
    explore_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of suggestion decisions in which silence is forbidden."""
    feedback_token_ttl_s: float = Field(default=86_400, gt=0)
    cors_origins: tuple[Origin, ...] = ()
    """Web pages that may call this service from a browser, as `https://app.example`; or `*`."""
    api_keys: tuple[str, ...] = ()
    """Application keys; empty: one is made in the workspace on the first start."""
    num_threads: int = Field(default=1, ge=1)
    seed: int | None = None
    """Of exploration and sampling; None: a different run each time."""


class AccessSettings(Section):
    """Who may enter, and over what: shared by gateways and nodes."""

    key_file: Path = Path("keys.toml")
    """Hashes of the keys that `tendril keys` made; below the workspace unless absolute."""
    tls_certificate: Path | None = None
    """PEM, chain included; with `tls_key` the public port speaks HTTPS."""
    tls_key: Path | None = None

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("expected tls_certificate and tls_key together, got one of them")
        return self


class ReplicaSettings(Section):
    """One serving node behind the gateway."""

    url: str = Field(pattern=r"^https?://[^/?#@\s]+/?$")
    """Scheme, host and port, as in `http://10.0.0.7:8002`."""
    group: Literal["live", "canary"] = "live"


class GatewaySettings(Section):
    """The stateless door in front of the replicas; any number of copies."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    replicas: tuple[ReplicaSettings, ...] = ()
    """Empty: the one that listens on `serving.port` here."""
    canary_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of users whose requests go to the canary group, while it has a healthy replica."""
    max_running: int = Field(default=1_024, ge=1)
    """Requests at once in this copy; beyond it they are refused with 429."""
    max_body_bytes: int = Field(default=8_000_000, ge=1024)
    """Before a replica's own limit; `max_running` times this bounds the memory of bodies."""
    default_requests_per_minute: int | None = Field(default=None, ge=1)
    """For keys without a quota of their own, each copy on its own; None: no limit."""
    connect_timeout_s: float = Field(default=2.0, gt=0)
    silence_timeout_s: float = Field(default=300.0, gt=0)
    """Longest wait for a replica's next byte, the first included: a reply that is not streamed
    comes only when it is complete."""
    request_timeout_s: float = Field(default=3_600.0, gt=0)
    """Whole request, a client that reads slowly included."""
    body_timeout_s: float = Field(default=60.0, gt=0)
    """For a client to send its whole body."""
    poll_interval_s: float = Field(default=0.5, gt=0)
    """Between two looks at a replica's health."""
    poll_timeout_s: float = Field(default=2.0, gt=0)
    max_attempts: int = Field(default=3, ge=1)
    """Replicas that one request may try, all before the first byte of its reply."""
    drain_notice_s: float = Field(default=1.0, ge=0)
    """After a stop, how long requests are still taken while `/ready` says no."""
    drain_s: int = Field(default=10, ge=1)
    """After that, how long running requests may take to finish."""


class SignalsSettings(Section):
    """From traces and feedback to episodes."""

    recipe: Path | None = None
    """TOML; None: the default recipe."""
    feedback_window_s: float = Field(default=86_400, gt=0)
    """How long a trace waits for feedback before its episode closes."""
    held_out_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of sessions kept from the learner, for the gate."""
    batch_records: int = Field(default=500, ge=1)


class LearnerSettings(Section):
    """The online lane. Formulas: docs/architecture.md, "Learner"."""

    learning_rate: float = Field(default=2e-4, gt=0)
    adam_epsilon: float = Field(default=3e-3, gt=0)
    """Near the gradients' own size, on purpose: weights whose gradient is mostly noise then barely
    move, which spares KL and keeps deltas small (docs/measurements.md)."""
    batch_episodes: int = Field(default=96, ge=1)
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


class ConsoleSettings(Section):
    """The console page."""

    host: str = "127.0.0.1"
    """Where it listens; whatever this is, only requests to a loopback name are answered."""
    port: int = Field(default=8080, ge=0, le=65535)


class TelemetrySettings(Section):
    """OpenTelemetry export."""

    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP receiver; None: nothing is exported."""
    export_interval_s: float = Field(default=10, gt=0)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


class Settings(BaseSettings):
    """The whole of `tendril.toml`."""

    model_config = SettingsConfigDict(
        env_prefix="TENDRIL_", env_nested_delimiter="__", extra="forbid", frozen=True
    )
    workspace: Path = Path(".tendril")
    """Folder for everything that Tendril writes."""
    log: LogSettings = LogSettings()
    serving: ServingSettings = ServingSettings()
    access: AccessSettings = AccessSettings()
    gateway: GatewaySettings = GatewaySettings()
    signals: SignalsSettings = SignalsSettings()
    learner: LearnerSettings = LearnerSettings()
    shipping: ShippingSettings = ShippingSettings()
    console: ConsoleSettings = ConsoleSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    def path(self, path: Path) -> Path:
        """`path` below the workspace, unless it is absolute."""
        return (self.workspace / path).absolute()


def load_settings(file: Path | None) -> Settings:
    """Settings from `file` (None: defaults) and the environment.

    Raises `pydantic.ValidationError` naming each wrong or unknown key, and `InvalidSettings` for
    a file that is not TOML or a variable that names no section.
    """
    _refuse_unknown_sections()

    class FromFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return env_settings, TomlConfigSettingsSource(settings_cls, file)

    try:
        return FromFile()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file}: expected TOML, got: {error}") from error


def _refuse_unknown_sections() -> None:
    """A misspelt section in a variable would otherwise change nothing, silently."""
    for variable in os.environ:
        section, nested, _ = variable.upper().removeprefix("TENDRIL_").partition("__")
        if not (nested and variable.upper().startswith("TENDRIL_")):
            continue
        if section.lower() not in Settings.model_fields:
            raise InvalidSettings(
                f"{variable}: expected a section among {', '.join(Settings.model_fields)}, "
                f"got {section.lower()}"
            )
