"""Settings of serving nodes, of the gateway before them, and of who may enter."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from tendril.settings.section import EngineName, Origin, Section

PACKAGED_CHECKPOINT = (
    Path(__file__).parent.parent.parent / "offline_rl" / "autocomplete" / "base_model"
)


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
