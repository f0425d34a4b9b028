"""Failures that a person can mend, in words."""

from pydantic import ValidationError

from shipper.shipping import ShipRefused
from shipper.store import PointerMoved, UnknownVersion
from tendril.cli.supervisor import AlreadyRunning
from tendril.files import WorkspaceUnwritable
from tendril.log import LogUnavailable

EXPECTED = (
    AlreadyRunning, FileNotFoundError, LogUnavailable, PermissionError, PointerMoved, ShipRefused,
    UnknownVersion, WorkspaceUnwritable,
)  # fmt: skip


def explain(error: Exception) -> str | None:
    """What to tell the person, or None for a failure that only a traceback explains."""
    if isinstance(error, ValidationError):
        lines = [
            f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {e['input']!r:.60}"
            for e in error.errors()
        ]
        return "settings: " + "; ".join(lines)
    if isinstance(error, EXPECTED):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    return None
