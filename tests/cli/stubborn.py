"""Children for test_supervisor.py: stubborn ROLE FILE. Each says its pid in FILE, then waits.

deaf:     ignores SIGTERM.
tendril:  runs as a process of Tendril does, until told to stop.
group:    supervises one `tendril` child, until killed.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from tendril.cli.supervisor import Supervisor, supervise
from tendril.process import run_until_stopped
from tendril.settings import Settings


def _say(path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")


def main(role: str, path: Path) -> None:
    if role == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _say(path)
        time.sleep(60)
    elif role == "tendril":

        def run(_: Settings, stop: threading.Event) -> None:
            _say(path)
            print("at work", flush=True)
            stop.wait(60)

        run_until_stopped("test", run, Settings())
    else:
        supervisor = Supervisor(path.parent, {})
        supervisor.add("child", ["-m", "tests.cli.stubborn", "tendril", str(path)])
        supervise(supervisor, threading.Event())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
