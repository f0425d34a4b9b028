"""`tendril status`: what is live, how the loop is, what runs here."""

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from dashboards.follower import LoopFollower
from dashboards.health import limits_of
from dashboards.loop_view import LoopView
from dashboards.snapshot import LoopSnapshot
from tendril.cli.supervisor import WorkspaceLock
from tendril.log import open_log_to_read
from tendril.settings import Settings, load_settings

VERSIONS_SHOWN = 8
SILENT_S = 60.0
"""A node that has said nothing for so long does not run: each says something every few seconds."""


def print_status(config: Path | None, *, as_json: bool) -> None:
    """Fold the whole log once and print what it says."""
    settings = load_settings(config)
    snapshot = fold(settings)
    processes = running_processes(settings)
    if as_json:
        document = {"processes": processes, "loop": msgspec.to_builtins(snapshot)}
        json.dump(document, sys.stdout, indent=2)
        print()
        return
    console = Console(markup=False, emoji=False)  # reasons and details are anybody's text
    if processes or any(node.age_s < SILENT_S for node in snapshot.nodes):
        console.print(f"live version {snapshot.live_version or '-'}, {snapshot.health.level}")
        for problem in snapshot.health.problems:
            console.print(f"  {problem}")
    else:
        version = snapshot.live_version or "-"
        console.print(f"live version {version}; {nothing_runs(settings)}", soft_wrap=True)
    console.print(_decisions(snapshot))
    console.print(_versions(snapshot))
    console.print(_nodes(snapshot))
    console.print(_processes(processes))


def fold(settings: Settings) -> LoopSnapshot:
    """The loop as the log tells it, up to now."""
    log = open_log_to_read(settings)
    follower = LoopFollower(log, LoopView(limits_of(settings)))
    try:
        while follower.poll(timeout_s=0.05):
            pass
        return follower.snapshot()
    finally:
        follower.close()
        log.close()


def running_processes(settings: Settings) -> list[dict[str, Any]]:
    """What the supervisor of this workspace runs now; empty where there is none."""
    path = settings.workspace / "processes.json"
    if WorkspaceLock(settings.workspace).holder() is None or not path.exists():
        return []
    children: list[dict[str, Any]] = json.loads(path.read_bytes())["children"]
    return children if any(child["pid"] for child in children) else []


def nothing_runs(settings: Settings) -> str:
    """That no process of this workspace runs, and what to do about it."""
    workspace = settings.workspace
    demo = workspace / "demo"
    if WorkspaceLock(demo).holder() is not None:
        return (
            f"nothing runs in {workspace}, but a demo runs in {demo}: tendril --config "
            f"{demo}/tendril.toml status"
        )
    start = "tendril demo" if demo.is_file() else "tendril up"  # its marker is a file
    return f"nothing runs in {workspace}: start it with `{start}`"


def _decisions(snapshot: LoopSnapshot) -> str:
    traffic = snapshot.traffic
    text = f"{traffic.num_decisions:,} decisions"
    if not traffic.untrainable:
        return text
    share = sum(traffic.untrainable.values()) / traffic.num_decisions
    largest_first = sorted(traffic.untrainable.items(), key=lambda item: -item[1])
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in largest_first)
    return f"{text}, {100 * share:.1f} % not to be learned from: {reasons}"


def _versions(snapshot: LoopSnapshot) -> Table:
    table = Table("version", "state", "since", "gate", "delta", "held ms", box=None)
    for view in snapshot.versions[:VERSIONS_SHOWN]:
        name = f"{view.policy_version}{' (live)' if view.live else ''}"
        ratio = f"{view.delta_ratio:.1f}x" if view.delta_ratio else ""
        pause = f"{view.swap_pause_ms:.1f}" if view.swap_pause_ms is not None else ""
        table.add_row(name, view.state, _clock(view.state_at), view.reason, ratio, pause)
    return table


def _nodes(snapshot: LoopSnapshot) -> Table:
    table = Table(
        "node", "version", "state", "behind", "running", "waiting", "seen", "last refusal", box=None
    )
    for node in snapshot.nodes:
        table.add_row(
            node.node,
            str(node.policy_version),
            f"{node.state} {node.detail}" if node.state == "staging" else node.state,
            str(node.versions_behind),
            str(node.num_running),
            str(node.num_waiting),
            f"{node.age_s:.0f} s ago",
            f"{node.refused_s:.0f} s ago: {node.refusal}" if node.refused_s is not None else "",
        )
    return table


def _processes(children: list[dict[str, Any]]) -> Table:
    table = Table("process", "pid", "up", "restarts", box=None)
    for child in children:
        up_s = time.time() - child["started_at"]
        pid = str(child["pid"] or "down")
        table.add_row(child["name"], pid, f"{up_s:.0f} s", str(child["restarts"]))
    return table


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")
