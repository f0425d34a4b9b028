"""What a demo shows while it runs: a live picture in a terminal, plain lines anywhere else."""

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from dashboards.follower import LoopFollower
from dashboards.health import limits_of
from dashboards.loop_view import LoopView
from dashboards.snapshot import LoopSnapshot
from tendril.cli.live_view import render
from tendril.cli.supervisor import Supervisor
from tendril.log import open_log
from tendril.settings import Settings

REDRAW_S, LOOK_S = 0.5, 1.0
"""Between two pictures; between two looks for news where lines are printed."""
LINE_EVERY_S = 15.0


class Watch:
    """Follows the log, and shows what it says."""

    def __init__(
        self, settings: Settings, *, headless: bool, started_at: float, ends_at: float
    ) -> None:
        self._settings, self._started_at, self.ends_at = settings, started_at, ends_at
        self._log = open_log(settings)
        self._follower = LoopFollower(self._log, LoopView(limits_of(settings)))
        console = Console()
        self._live = Live(console=console, auto_refresh=False, screen=False)
        self._news = News(settings) if headless or not console.is_terminal else None
        self._next_draw = 0.0
        if self._news is None:
            self._live.start()
        else:
            self._print(self._news.start(ends_at - started_at))

    def until(self, done: Callable[[], bool], supervisor: Supervisor) -> None:
        """Keep watching, and the processes alive, until `done`."""
        while not done():
            supervisor.tick()
            self._follower.poll(timeout_s=0.1)
            if time.monotonic() >= self._next_draw:
                self._draw(self._follower.snapshot())

    def say(self, line: str) -> None:
        """Above the picture, or as one more line."""
        self._live.console.print(line, markup=False, soft_wrap=True)

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
        if self._news is not None:
            self._next_draw = time.monotonic() + LOOK_S
            for line in self._news.lines(snapshot, elapsed_s):
                self._print(line)
            return
        self._next_draw = time.monotonic() + REDRAW_S
        view = render(
            snapshot,
            title="Tendril demo",
            elapsed_s=elapsed_s,
            total_s=self.ends_at - self._started_at,
            urls={"console": _console(self._settings)},
            command=f"go back: {rollback_command(self._settings)}",
        )
        self._live.update(view, refresh=True)

    @staticmethod
    def _print(line: str) -> None:
        print(line, flush=True)


class News:
    """The loop in lines: what is new at each look, and how it stands now and then."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._live_version: int | None = None
        self._next_line_s = 0.0
        self._has_suggested = False

    def start(self, total_s: float) -> str:
        gateway = self._settings.gateway
        return (
            f"console {_console(self._settings)}  API http://{gateway.host}:{gateway.port}/v1  "
            f"logs {_short(self._settings.workspace)}/logs\n"
            f"runs for {total_s:.0f} s; go back: {rollback_command(self._settings)}"
        )

    def lines(self, snapshot: LoopSnapshot, elapsed_s: float) -> Iterator[str]:
        if not self._has_suggested and (after_s := self._first_suggestion_s(elapsed_s)) is not None:
            self._has_suggested = True
            yield f"{after_s:5.0f} s  first suggestion"
        if (live := snapshot.live_version) != self._live_version:
            if self._live_version is not None and live is not None:
                yield f"{elapsed_s:5.0f} s  {_swapped(snapshot, live)}"
            self._live_version = live
        if elapsed_s >= self._next_line_s:
            self._next_line_s = elapsed_s + LINE_EVERY_S
            yield _line(snapshot, elapsed_s)

    def _first_suggestion_s(self, elapsed_s: float) -> float | None:
        """As the users' own account has it, which is written now and then."""
        try:
            stats = json.loads((self._settings.workspace / "users.json").read_bytes())
        except FileNotFoundError:
            return None
        at: float | None = stats["first_suggestion_at"]
        return None if at is None else elapsed_s - (time.time() - at)


def rollback_command(settings: Settings) -> str:
    """As it can be pasted into another terminal that stands in the same folder."""
    config = settings.workspace / "tendril.toml"
    return shlex.join([*_this_command(), "--config", _short(config), "rollback"])


def _this_command() -> list[str]:
    command = Path(sys.argv[0])
    if command.name != "tendril":
        return [_short(Path(sys.executable)), "-m", "tendril.cli"]
    return ["tendril" if shutil.which("tendril") == str(command) else _short(command)]


def _short(path: Path) -> str:
    """Relative where it lies below the present folder, else as it is."""
    here = Path.cwd()
    absolute = Path(os.path.normpath(here / path))
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)


def _console(settings: Settings) -> str:
    return f"http://127.0.0.1:{settings.console.port}"


def _swapped(snapshot: LoopSnapshot, version: int) -> str:
    view = next((v for v in snapshot.versions if v.policy_version == version), None)
    if view is None:
        return f"version {version} is live"
    ratio = f", delta {view.delta_ratio:.1f}x smaller" if view.delta_ratio else ""
    return f"version {version} is live ({view.reason}{ratio})"


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
