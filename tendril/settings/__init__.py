"""Every setting of every process, typed, in one place.

Read from `tendril.toml`, then overridden by environment variables such as
`TENDRIL_SERVING__PORT=8000`. Unknown keys fail. `tendril config` prints the result and where
each value came from.
"""

import os
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from tendril.settings.log import KafkaSettings, LakeSettings, LogSettings
from tendril.settings.loop import (
    LearnerSettings,
    PrivacySettings,
    ShippingSettings,
    SignalsSettings,
    TenantConsent,
    TrustSettings,
)
from tendril.settings.section import EngineName, Section
from tendril.settings.serving import (
    PACKAGED_CHECKPOINT,
    AccessSettings,
    GatewaySettings,
    ReplicaSettings,
    ServingSettings,
)

__all__ = [
    "PACKAGED_CHECKPOINT",
    "AccessSettings",
    "ConsoleSettings",
    "EngineName",
    "GatewaySettings",
    "InvalidSettings",
    "KafkaSettings",
    "LakeSettings",
    "LearnerSettings",
    "LogSettings",
    "PrivacySettings",
    "ReplicaSettings",
    "ServingSettings",
    "Settings",
    "ShippingSettings",
    "SignalsSettings",
    "TelemetrySettings",
    "TenantConsent",
    "TrustSettings",
    "load_settings",
]


class InvalidSettings(ValueError):
    """The settings could not be read as such; names the file or the variable."""


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
    privacy: PrivacySettings = PrivacySettings()
    lake: LakeSettings = LakeSettings()
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
