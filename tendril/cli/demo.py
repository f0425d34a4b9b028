"""`tendril demo`: the whole loop on this machine, watched, and judged at the end."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import msgspec
from rich.console import Console

from dashboards.snapshot import LoopSnapshot
from tendril.cli.checks import check_workspace
from tendril.cli.demo_broker import check_broker, running_broker
from tendril.cli.demo_watch import Watch
from tendril.cli.demo_workspace import RETENTION_S, LogKind, demo_folder, prepare
from tendril.cli.processes import arguments_for
from tendril.cli.supervisor import Supervisor, WorkspaceLock
from tendril.files import write_whole
from tendril.process import end_on_signals, stop_on_signals
from tendril.settings import EngineName, Settings, load_settings

EVALUATION_SHARE, MAX_EVALUATION_S = 0.2, 80.0
"""Of the whole time, kept for the evaluation at the end."""
DRAIN_S = 3.0
EVALUATING = "evaluating the shipped policy against the base (about a minute; Ctrl-C skips it)"
USERS: Mapping[EngineName, int] = {"torch": 28, "vllm": 12}
"""People whose requests two cores serve while the rest of the loop runs on them too."""
REST = ("signals", "agent", "ship", "learn", "console")


def run_demo(
    *,
    minutes: float,
    seed: int,
    headless: bool,
    report: Path | None,
    users: int | None,
    engine: EngineName,
    log: LogKind,
) -> int:
    """Run, watch, evaluate, report; 0 where the loop did its work without a failed request."""
    started_at = time.time()
    workspace = demo_folder()
    if log == "kafka":
        check_broker()
    check_workspace(workspace.parent)
    ends_at = started_at + 60 * minutes - min(MAX_EVALUATION_S, EVALUATION_SHARE * 60 * minutes)
    with WorkspaceLock(workspace).held():  # to the end: another demo would clear the folder
        config = prepare(workspace, seed, engine, log)
        settings = load_settings(config)
        with running_broker(settings):
            watch = Watch(settings, headless=headless, started_at=started_at, ends_at=ends_at)
            snapshot = _run(config, settings, watch, users or USERS[engine], seed)
            if snapshot is None:
                print("stopped; every process of the demo has ended")
                return 1
            end_on_signals()  # nothing is left to end in order, and an evaluation takes a minute
            print(EVALUATING, flush=True)
            return _report(settings, snapshot, started_at, seed, report)


def _run(
    config: Path, settings: Settings, watch: Watch, users: int, seed: int
) -> LoopSnapshot | None:
    """Every process until the time is over; the loop's last state, None where it was stopped."""
    stop = threading.Event()
    stop_on_signals(stop)
    supervisor = Supervisor(settings.workspace, {})
    try:
        start(supervisor, config, settings, users, seed, stop)
        watch.until(lambda: stop.is_set() or time.time() >= watch.ends_at, supervisor)
        supervisor.end("users")
        drained_at = time.time() + DRAIN_S
        watch.until(lambda: stop.is_set() or time.time() >= drained_at, supervisor)
    finally:
        watch.say("stopping: the processes finish what they have begun")
        supervisor.stop()
        watch.catch_up()
        snapshot = watch.close()
    return None if stop.is_set() else snapshot


def start(
    supervisor: Supervisor,
    config: Path,
    settings: Settings,
    users: int,
    seed: int,
    stop: threading.Event,
) -> None:
    """Serving and users first, so that the first suggestion comes early; then the rest."""
    url = f"http://{settings.gateway.host}:{settings.gateway.port}"
    workspace = settings.workspace
    supervisor.add("serve", arguments_for("serve", config))
    supervisor.add("gateway", arguments_for("gateway", config))
    supervisor.add(
        "users",
        ["-m", "offline_rl.autocomplete.users", "--url", url, "--key-file",
         str(workspace / "api_key"), "--stats", str(workspace / "users.json"),
         "--users", str(users), "--seed", str(seed), "--retention-s", str(RETENTION_S)],
    )  # fmt: skip
    while not stop.wait(0.1):
        try:
            httpx.get(f"{url}/ready", timeout=1).raise_for_status()
            break
        except httpx.HTTPError:
            supervisor.tick()
            supervisor.refuse_crash_loop()
    if stop.is_set():
        return
    for command in REST:
        supervisor.add(command, arguments_for(command, config))


def _report(
    settings: Settings, snapshot: LoopSnapshot, started_at: float, seed: int, path: Path | None
) -> int:
    from tendril.cli.demo_report import build_report, render_report

    report = build_report(settings, snapshot, started_at, seed)
    Console().print(render_report(report))
    if path is not None:
        write_whole(path.absolute(), msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        print(f"report written to {path}")
    return 0 if report["requests"]["failed"] == 0 and report["ledger"]["balanced"] else 1
