"""`quarantine list`, `place`, `release`: the operator's hand on what may train."""

import getpass
import re
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import get_args

import msgspec
from rich.console import Console
from rich.table import Table

from signals.trust.quarantine import after, by_hand, released
from tendril.log import EventLog, open_log, read_all, readable
from tendril.quarantine import Quarantines
from tendril.records import Quarantine, QuarantineScope
from tendril.settings import load_settings

SHOWN_ID_CHARS = 10
NAMES = {
    "user": re.compile(r".+/[^/]+", re.DOTALL),
    "tenant": re.compile(r".+", re.DOTALL),
    "trace": re.compile(r".+", re.DOTALL),
    "policy": re.compile(r"0|[1-9][0-9]*"),
    "grader": re.compile(r".+@.+", re.DOTALL),
}
NAMED = {
    "user": "TENANT/USER_KEY", "tenant": "a name", "trace": "an id",
    "policy": "a version's number", "grader": "NAME@VERSION",
}  # fmt: skip


class QuarantineRefused(ValueError):
    """What was asked for names no one quarantine, or no scope."""


def print_quarantines(config: Path | None, *, every: bool, as_json: bool) -> None:
    """The open ones, or all with their last word, oldest first."""
    known = read_quarantines(open_log(load_settings(config)))
    records = known.all() if every else known.open()
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(records)) + b"\n")
        return
    table = Table("id", "state", "scope", "of", "from", "to", "detector", "by", "why", box=None)
    for record in records:
        table.add_row(
            record.quarantine_id[:SHOWN_ID_CHARS], record.state, record.scope, record.scope_id,
            _when(record.since), _when(record.until), record.detector, record.actor, record.reason,
        )  # fmt: skip
    Console(markup=False, emoji=False).print(table)  # a reason is anybody's text


def place(
    config: Path | None, scope: str, name: str, *, reason: str, since: float, until: float | None
) -> None:
    """Place one by hand. Raises `QuarantineRefused` for a scope that does not exist."""
    scopes: dict[str, QuarantineScope] = {known: known for known in get_args(QuarantineScope)}
    if scope not in scopes:
        raise QuarantineRefused(f"scope: expected one of {', '.join(scopes)}, got {scope}")
    if not NAMES[scope].fullmatch(name):
        raise QuarantineRefused(f"{scope}: expected {NAMED[scope]}, got {name!r}")
    if until is not None and until <= since:
        raise QuarantineRefused(f"until: expected a time after {since}, got {until}")
    record = by_hand(
        scopes[scope], name, since=since, until=until, reason=reason, actor=_actor(),
        at=time.time(),
    )  # fmt: skip
    log = open_log(load_settings(config))
    append(log, after(record, read_quarantines(log)))
    print(f"{record.quarantine_id[:SHOWN_ID_CHARS]}: {scope} {name} is out of training")


def release(config: Path | None, name: str, *, reason: str) -> None:
    """Release the open one whose id starts with `name`."""
    log = open_log(load_settings(config))
    found = [q for q in read_quarantines(log).open() if name and q.quarantine_id.startswith(name)]
    if len(found) != 1:
        raise QuarantineRefused(
            f"quarantine {name}: expected one open quarantine, got {len(found)} "
            "(tendril quarantine list)"
        )
    append(log, released(found[0], reason=reason, actor=_actor(), at=time.time()))
    print(f"{found[0].quarantine_id[:SHOWN_ID_CHARS]}: released")


def append(log: EventLog, record: Quarantine) -> None:
    """One key for all: they are few, and their order is what counts."""
    log.append([(Quarantine.TOPIC, record)])


def read_quarantines(log: EventLog) -> Quarantines:
    """Folds the whole topic; what is unreadable is somebody's dead letter, not a quarantine."""
    known = Quarantines()
    for record, logged_at in readable(read_all(log, [Quarantine.TOPIC]), Quarantine):
        known.take(record, logged_at=logged_at)
    return known


def _when(at: float | None) -> str:
    if at is None:
        return "open"
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M") if 0 < at < 1e11 else "always"


def _actor() -> str:
    return f"operator {getpass.getuser()}"
