"""`ship`, `rollback`, `history`: the operator's hand on releases."""

import getpass
import sys
from datetime import datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from shipper.releases import read_history
from shipper.shipping import Shipper
from shipper.store import WeightStore
from tendril.log import open_log, open_log_to_read
from tendril.records import Release
from tendril.settings import load_settings


def ship(config: Path | None, version: int, *, force: bool, reason: str) -> None:
    """Put a version into service by hand."""
    _shipper(config).ship(version, actor=_actor(), reason=reason, force=force)
    print(f"version {version} is live; nodes follow within seconds (tendril status)")


def rollback(config: Path | None, version: int | None, *, reason: str) -> None:
    """Go back."""
    target = _shipper(config).rollback(version, actor=_actor(), reason=reason)
    print(f"version {target} is live again; nodes follow within seconds (tendril status)")


def print_history(config: Path | None, *, as_json: bool) -> None:
    """All release events, oldest first."""
    settings = load_settings(config)
    events = read_history(open_log_to_read(settings)).events
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(events)) + b"\n")
        return
    table = Table("when", "version", "event", "by", "why", box=None)
    for release in events:
        when = datetime.fromtimestamp(release.at).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(when, _subject(release), release.state, release.actor, release.reason)
    Console(markup=False, emoji=False).print(table)  # a reason is anybody's text


def _subject(release: Release) -> str:
    if release.target_version is None:
        return str(release.policy_version)
    return f"{release.policy_version} -> {release.target_version}"


def _shipper(config: Path | None) -> Shipper:
    settings = load_settings(config)
    log = open_log(settings)
    return Shipper(WeightStore(settings.path(settings.shipping.store)), log)


def _actor() -> str:
    return f"operator {getpass.getuser()}"
