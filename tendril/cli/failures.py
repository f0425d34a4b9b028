"""Failures that a person can mend, in words."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from serving.key_file import KeyRefused
from shipper.shipping import ShipRefused
from shipper.store import PointerMoved, UnknownVersion
from tendril.cli.quarantine import QuarantineRefused
from tendril.cli.supervisor import AlreadyRunning, CannotStart
from tendril.files import FolderInUse, WorkspaceUnwritable
from tendril.lake.results import LakeUnavailable, OffsetsMoved, QueryRefused, UnknownTable
from tendril.log import LogUnavailable
from tendril.settings import InvalidSettings

EXPECTED = (
    AlreadyRunning, CannotStart, FolderInUse, InvalidSettings, KeyRefused, LakeUnavailable,
    LogUnavailable, OffsetsMoved, PointerMoved, QuarantineRefused, QueryRefused, ShipRefused,
    UnknownTable, UnknownVersion, WorkspaceUnwritable,
)  # fmt: skip


def explain(error: Exception) -> str | None:
    """What to tell the person, or None for a failure that only a traceback explains."""
    if isinstance(error, ValidationError):
        return "settings: " + "; ".join(_wrong_setting(dict(e)) for e in error.errors())
    if isinstance(error, EXPECTED):
        return str(error).rstrip()
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    return None


def _wrong_setting(error: Mapping[str, Any]) -> str:
    key = ".".join(map(str, error["loc"]))
    got = "a value that is not shown" if _is_private(key) else f"{error['input']!r:.60}"
    return f"{key}: {error['msg']}, got {got}"


def _is_private(key: str) -> bool:
    return "key" in key or "storage_options" in key
