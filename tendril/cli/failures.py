"""Failures that a person can mend, in words."""

from pathlib import Path

from pydantic import ValidationError

from serving.key_file import KeyRefused
from shipper.shipping import ShipRefused
from shipper.store import PointerMoved, UnknownVersion
from tendril.cli.fit_reward import RewardRefused
from tendril.cli.quarantine import QuarantineRefused
from tendril.cli.supervisor import AlreadyRunning, CannotStart
from tendril.cli.wrong_settings import explain_settings
from tendril.files import FolderInUse, WorkspaceUnwritable
from tendril.lake.results import LakeUnavailable, OffsetsMoved, QueryRefused, UnknownTable
from tendril.log import LogUnavailable
from tendril.settings import InvalidSettings

EXPECTED = (
    AlreadyRunning, CannotStart, FolderInUse, InvalidSettings, KeyRefused, LakeUnavailable,
    LogUnavailable, OffsetsMoved, PointerMoved, QuarantineRefused, QueryRefused, RewardRefused,
    ShipRefused, UnknownTable, UnknownVersion, WorkspaceUnwritable,
)  # fmt: skip


def explain(error: Exception, config: Path | None = None) -> str | None:
    """What to tell the person, or None for a failure that only a traceback explains."""
    if isinstance(error, ValidationError):
        return explain_settings(error, config)
    if isinstance(error, EXPECTED):
        return str(error).rstrip()
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    return None
