"""`tendril up` and `tendril down`: a whole deployment on one machine."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from tendril.cli.announcer import Announcer
from tendril.cli.checks import check_workspace, refuse_faults
from tendril.cli.processes import arguments_for, children
from tendril.cli.supervisor import Supervisor, WorkspaceLock, supervise
from tendril.process import stop_on_signals
from tendril.settings import Settings, load_settings

DOWN_S = 30.0


def up(config: Path | None) -> None:
    """Supervise in the foreground until told to stop."""
    settings = load_settings(config)
    check_workspace(settings.workspace)
    refuse_faults(settings)
    with WorkspaceLock(settings.workspace).held():
        stop = threading.Event()
        stop_on_signals(stop)
        supervisor = Supervisor(settings.workspace, {})
        try:
            for name, command in children(settings):
                supervisor.add(name, arguments_for(command, config))
            num, logs = len(supervisor.children()), settings.workspace / "logs"
            print(
                f"starting {num} processes, logs in {logs}; Ctrl-C or `tendril down` ends them",
                flush=True,
            )
            supervise(supervisor, stop, Announcer(settings, supervisor).look)
        finally:
            supervisor.stop()


def down(config: Path | None) -> None:
    """Ask the supervisor of this workspace, or of the demo below it, to end, and wait for it."""
    settings: Settings = load_settings(config)
    workspace = settings.workspace
    lock = WorkspaceLock(workspace)
    holder = lock.holder()
    if holder is None and (workspace / "demo").exists():
        workspace /= "demo"
        lock = WorkspaceLock(workspace)
        holder = lock.holder()
    if holder is None:
        print(f"nothing runs in {settings.workspace}")
        return
    os.kill(holder, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_S
    while lock.holder() == holder:
        if time.monotonic() > deadline:
            print(f"process {holder} did not end in {DOWN_S:.0f} s", file=sys.stderr)
            sys.exit(1)
        time.sleep(0.1)
    print(f"stopped {workspace}")
