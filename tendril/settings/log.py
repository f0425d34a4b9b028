"""Settings of the event log and of the lake."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from tendril.settings.section import Section


class KafkaSettings(Section):
    """A Kafka cluster, for `log.kind = "kafka"`. Every process needs the same values."""

    servers: tuple[str, ...] = ("127.0.0.1:9092",)
    """`host:port` of some brokers; the rest of the cluster is found through them."""
    topic_prefix: str = Field(default="tendril-", pattern=r"^[a-zA-Z0-9._-]{0,100}$")
    partitions: int = Field(default=8, ge=1)
    """Of `traces` and of `feedback`: as many extractors can share the work. Every other topic has
    one, so that its order is total. Fixed once the topics exist."""
    replication_factor: int = Field(default=1, ge=1)
    """3 on a cluster of three brokers or more."""
    retention_hours: float = Field(default=168, gt=0, le=168)
    """Of all but `policies`, `releases`, `quarantine` and `consents`, which are state."""
    compression: Literal["zstd", "lz4", "gzip", "none"] = "zstd"
    max_record_bytes: int = Field(default=900_000, ge=1_000, le=100_000_000)
    """Larger records lie below `references` and travel by reference. The brokers' own limit
    (`message.max.bytes`, 1 MB unless changed) has to be larger than this."""
    references: Path = Path("references")
    """Shared by all processes; below the workspace unless absolute."""
    member: str | None = Field(default=None, pattern=r"^[a-zA-Z0-9._-]{1,100}$")
    """This process's lasting name in its groups, for static membership: a restart within
    `session_timeout_s` then moves no partition, and a stop hands over only after it. No two
    processes of one kind may share a name. None: a member for as long as the process runs."""
    session_timeout_s: float = Field(default=10, ge=6)
    """Silence after which a reader's partitions go to others."""
    max_poll_interval_s: float = Field(default=300, gt=0)
    """Time between two polls after which a reader counts as stuck."""
    request_timeout_s: float = Field(default=10, ge=1)
    """For an answer; an append may take twice as long."""
    join_timeout_s: float = Field(default=5, gt=0)
    """How long a poll waits to become a member before it says that there is nothing to read."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ca_file: Path | None = None
    """PEM; None: the system's authorities."""
    certificate_file: Path | None = None
    """This client's, PEM with the chain, where brokers ask for one."""
    key_file: Path | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: str | None = None
    password: SecretStr | None = None
    """Better set as TENDRIL_LOG__KAFKA__PASSWORD than in a file."""

    @model_validator(mode="after")
    def _credentials_for_sasl(self) -> Self:
        has_all = None not in (self.sasl_mechanism, self.username, self.password)
        if self.security_protocol.startswith("SASL") and not has_all:
            raise ValueError(
                f"{self.security_protocol}: expected sasl_mechanism, username and password"
            )
        return self


class LogSettings(Section):
    """The event log."""

    kind: Literal["sqlite", "kafka"] = "sqlite"
    """`sqlite`: one file, for the processes of one machine. `kafka`: any number of machines."""
    path: Path = Path("log.db")
    """SQLite's file; below the workspace unless absolute."""
    partitions: int = Field(default=1, ge=1)
    """Of `traces` and of `feedback` in SQLite's file: as many signals processes can share the
    work. Fixed when the file is made."""
    kafka: KafkaSettings = KafkaSettings()


class LakeSettings(Section):
    """Delta tables of traces, feedback, episodes, quarantine and ledger."""

    root: str = "lake"
    """A folder, below the workspace unless absolute, or `s3://bucket/prefix`."""
    storage_options: dict[str, str] = {}
    """For an object store, as `aws_endpoint_url`, `aws_region`, `aws_access_key_id`; what is not
    here comes from the environment's `AWS_` variables."""
    commit_interval_s: float = Field(default=5.0, gt=0)
    """Rows gather for so long before a commit; each commit makes files."""
    compact_after_files: int = Field(default=2_000, ge=2)
    """Small files of one table after which they are rewritten as few."""
    keep_replaced_s: float = Field(default=86_400, ge=3_600)
    """How long readers may still use files that a rewrite replaced."""
