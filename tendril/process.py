"""How every process of Tendril starts and ends: logging, signals, and the parent it belongs to."""

import logging
import os
import signal
import threading
from collections.abc import Callable

from tendril.settings import Settings

PARENT_VARIABLE = "TENDRIL_SUPERVISOR_PID"
"""Set by the supervisor for its children: they end when it has gone, even by kill -9."""
PARENT_CHECK_S = 0.5


def run_until_stopped(
    name: str, run: Callable[[Settings, threading.Event], None], settings: Settings
) -> None:
    """Run a process's loop until SIGINT, SIGTERM or the end of its supervisor.

    A second signal ends it at once.
    """
    logging.basicConfig(
        level=settings.telemetry.log_level,
        format=f"%(asctime)s {name} %(levelname)s %(message)s",
        force=True,
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    stop = threading.Event()
    stop_on_signals(stop)
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        threading.Thread(target=_watch_parent, args=(int(parent), stop), daemon=True).start()
    run(settings, stop)


def stop_on_signals(stop: threading.Event) -> None:
    """The first SIGINT or SIGTERM sets `stop`, the second has its default effect."""

    def handle(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def end_on_signals() -> None:
    """Undo `stop_on_signals`: the next signal ends the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _watch_parent(parent: int, stop: threading.Event) -> None:
    while not stop.wait(PARENT_CHECK_S):
        if os.getppid() != parent:
            logging.getLogger(__name__).warning("the supervisor has gone; stopping")
            stop.set()
