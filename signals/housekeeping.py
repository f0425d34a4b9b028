"""What the signals process does beside the join: follow-ups, detectors, fits, the lake's upkeep."""

import logging
import threading
import time
from typing import TYPE_CHECKING

from signals.decisions import Decisions
from signals.followup.annotator import Annotator
from signals.recipe import load_recipe
from signals.refit import Refitter
from signals.trust.watch import Watch
from tendril.lake import open_lake
from tendril.lake.results import LakeUnavailable, OffsetsMoved
from tendril.log import EventLog, LogUnavailable
from tendril.settings import Settings
from tendril.telemetry import Telemetry

if TYPE_CHECKING:
    from tendril.lake.lake import Lake

TURN_S = 5.0
KEEP_UP_EVERY_S = 60.0
logger = logging.getLogger(__name__)


class Housekeeping:
    """A thread with a lake of its own; idle while another extractor is on duty."""

    def __init__(self, settings: Settings, log: EventLog, telemetry: Telemetry) -> None:
        self.on_duty = threading.Event()
        """Set while this process has partition 0."""
        self._settings, self._log, self._telemetry = settings, log, telemetry
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)
        self._keep_up_at = time.monotonic() + KEEP_UP_EVERY_S

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop after what is being done."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        lake, recipe = open_lake(self._settings), load_recipe(self._settings.signals.recipe)
        watch = Watch(self._settings, self._log, lake, recipe, self._telemetry)
        folder = self._settings.path(self._settings.signals.folder)
        annotator = Annotator(
            self._log, lake, self._settings.serving.checkpoint, folder / "follow_ups.json"
        )
        decisions = Decisions(self._log)
        refitter = Refitter(self._settings, self._log, lake, decisions.decided.fits)
        while not self._stop.wait(TURN_S):
            if not self.on_duty.is_set():
                continue
            try:
                annotator.look()
                while watch.look(time.time()) and not self._stop.is_set():
                    pass
                decisions.poll()
                refitter.look(time.time())
                self._keep_up(lake)
            except (LogUnavailable, LakeUnavailable, OffsetsMoved) as outage:
                logger.warning("housekeeping waits: %s", outage)
            except Exception:  # the thread's outermost loop: the join goes on without it
                logger.exception("housekeeping")
        watch.close()
        decisions.close()

    def _keep_up(self, lake: "Lake") -> None:
        from tendril.lake.upkeep import keep_up

        if time.monotonic() < self._keep_up_at:
            return
        settings = self._settings.lake
        for kept in keep_up(
            lake,
            compact_after_files=settings.compact_after_files,
            keep_replaced_s=settings.keep_replaced_s,
        ):
            logger.info("lake: %s", kept)
        self._keep_up_at = time.monotonic() + KEEP_UP_EVERY_S
