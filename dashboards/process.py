"""The console process: follows the log and serves the page."""

import errno
import logging
import socket
import threading
import time
from pathlib import Path

import uvicorn

from dashboards.console import create_app
from dashboards.follower import LoopFollower
from dashboards.health import limits_of
from dashboards.loop_view import LoopView
from dashboards.snapshot import LoopSnapshot
from tendril.files import write_whole
from tendril.log import LogUnavailable, open_log
from tendril.settings import Settings
from tendril.telemetry import Telemetry, setup

URL_FILE = Path("console.url")
RETRY_S = 1.0
REPORT_EVERY_S = 5.0
logger = logging.getLogger(__name__)


def run(settings: Settings, stop: threading.Event) -> None:
    """Serve until `stop` is set; the page's address is in `<workspace>/console.url` meanwhile.

    Raises `LogUnavailable` when the log cannot be opened, `RuntimeError` when serving ends early.
    """
    log = open_log(settings)
    follower = LoopFollower(log, LoopView(limits_of(settings)))
    telemetry = setup("console", settings.telemetry)
    listener = listen(settings.console.port, settings.console.host)
    url_file = settings.path(URL_FILE)
    server = uvicorn.Server(
        uvicorn.Config(create_app(follower.snapshot), log_level="warning", access_log=False)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    try:
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        write_whole(url_file, f"{url}\n".encode())
        logger.info("console page: %s", url)
        _follow(follower, thread, stop, telemetry)
    finally:
        telemetry.shutdown()
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()
        url_file.unlink(missing_ok=True)
        follower.close()
        log.close()


def _follow(
    follower: LoopFollower, server: threading.Thread, stop: threading.Event, telemetry: Telemetry
) -> None:
    report_at = 0.0
    while not stop.is_set():
        if not server.is_alive():
            raise RuntimeError("the console's web server ended; expected it to run until stopped")
        try:
            follower.poll(timeout_s=0.25)
        except LogUnavailable as error:
            logger.warning("console waits for the log: %s", error)
            stop.wait(RETRY_S)
        if time.monotonic() >= report_at:
            report(telemetry, follower.snapshot())
            report_at = time.monotonic() + REPORT_EVERY_S


def report(telemetry: Telemetry, snapshot: LoopSnapshot) -> None:
    """The loop's health as metrics: only this process sees the whole log."""
    for stage in snapshot.stages:
        if stage.at is not None:
            telemetry.gauge("tendril.loop.newest", stage.at, stage=stage.name)
    for line in snapshot.ledger:
        imbalance = line.read - sum(line.outcomes.values())
        about = {"kind": f"{line.process}/{line.kind}", "node": line.node}
        telemetry.gauge("tendril.ledger.imbalance", imbalance, **about)
    if snapshot.live_version is not None:
        telemetry.gauge("tendril.loop.live_version", snapshot.live_version)


def listen(port: int, host: str = "127.0.0.1") -> socket.socket:
    """A listening socket on `port`; where that is taken, on a free one."""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    listener = socket.create_server((host, 0))
    logger.warning("port %d is taken; the console uses %d", port, listener.getsockname()[1])
    return listener
