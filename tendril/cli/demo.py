"""`tendril demo`: the whole loop on this machine, watched, and judged at the end."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import msgspec
from rich.console import Console
from rich.live import Live

from dashboards.follower import LoopFollower
from dashboards.health import limits_of
from dashboards.loop_view import LoopView
from dashboards.snapshot import LoopSnapshot
from tendril.cli.demo_broker import check_broker, running_broker
from tendril.cli.demo_workspace import RETENTION_S, LogKind, demo_folder, prepare
from tendril.cli.live_view import render
from tendril.cli.processes import arguments_for
from tendril.cli.supervisor import Supervisor, WorkspaceLock
from tendril.files import write_whole
from tendril.log import open_log
from tendril.process import end_on_signals, stop_on_signals
from tendril.settings import EngineName, Settings, load_settings

EVALUATION_SHARE, MAX_EVALUATION_S = 0.2, 80.0
"""Of the whole time, kept for the evaluation at the end."""
DRAIN_S = 3.0
REDRAW_S = 0.5
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
    config = prepare(workspace, seed, engine, log)
    settings = load_settings(config)
    lock = WorkspaceLock(workspace)
    lock.acquire()
    ends_at = started_at + 60 * minutes - min(MAX_EVALUATION_S, EVALUATION_SHARE * 60 * minutes)
    with running_broker(settings):
        watch = Watch(settings, headless=headless, started_at=started_at, ends_at=ends_at)
        snapshot = _run(config, settings, watch, users or USERS[engine], seed, lock)
        if snapshot is None:
            print("stopped; every process of the demo has ended")
            return 1
        end_on_signals()  # nothing is left to end in order, and an evaluation takes a minute
        return _report(settings, snapshot, started_at, seed, report)


def _run(
    config: Path, settings: Settings, watch: "Watch", users: int, seed: int, lock: WorkspaceLock
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
        supervisor.stop()
        watch.catch_up()
        snapshot = watch.close()
        lock.release()
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


class Watch:
    """The live view: follows the log and draws, or says a line now and then when headless."""

    def __init__(
        self, settings: Settings, *, headless: bool, started_at: float, ends_at: float
    ) -> None:
        self._settings, self._headless = settings, headless
        self._started_at, self.ends_at = started_at, ends_at
        self._log = open_log(settings)
        self._follower = LoopFollower(self._log, LoopView(limits_of(settings)))
        self._live = Live(console=Console(), auto_refresh=False, screen=False)
        self._next_draw = 0.0
        if headless:
            print(
                f"console http://127.0.0.1:{settings.console.port}  logs {settings.workspace}/logs",
                flush=True,
            )
        else:
            self._live.start()

    def until(self, done: Callable[[], bool], supervisor: Supervisor) -> None:
        """Keep watching, and the processes alive, until `done`."""
        while not done():
            supervisor.tick()
            self._follower.poll(timeout_s=0.1)
            if time.monotonic() >= self._next_draw:
                self._draw(self._follower.snapshot())

    def catch_up(self) -> None:
        """Read what the ended processes left on the log."""
        while self._follower.poll(timeout_s=0.2):
            pass

    def close(self) -> LoopSnapshot:
        """The last state of the loop."""
        snapshot = self._follower.snapshot()
        self._draw(snapshot)
        self._live.stop()
        self._follower.close()
        return snapshot

    def _draw(self, snapshot: LoopSnapshot) -> None:
        elapsed_s = time.time() - self._started_at
        if self._headless:
            self._next_draw = time.monotonic() + 15
            print(_line(snapshot, elapsed_s), flush=True)
            return
        self._next_draw = time.monotonic() + REDRAW_S
        config = self._settings.workspace / "tendril.toml"
        urls = {
            "console": f"http://127.0.0.1:{self._settings.console.port}",
            "go back:": f"tendril --config {config} rollback",
        }
        view = render(snapshot, title="Tendril demo", elapsed_s=elapsed_s,
                      total_s=self.ends_at - self._started_at, urls=urls)  # fmt: skip
        self._live.update(view, refresh=True)


def _line(snapshot: LoopSnapshot, elapsed_s: float) -> str:
    live = snapshot.live
    acceptance = f"{live.acceptance:.1%}" if live and live.acceptance is not None else "-"
    reward = (
        f"{live.reward_per_decision:+.3f}" if live and live.reward_per_decision is not None else "-"
    )
    return (
        f"{elapsed_s:5.0f} s  {snapshot.traffic.num_decisions} decisions "
        f"({snapshot.traffic.per_second:.0f}/s)  live version {snapshot.live_version or '-'}: "
        f"acceptance {acceptance}  reward {reward}  "
        f"shipped {snapshot.counts.shipped} held {snapshot.counts.held}"
    )


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
