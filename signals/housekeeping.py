"""What the signals process does beside the join: follow-ups, detectors, fits, the lake's upkeep."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from signals.fitted import FitsFollower
from signals.followup.annotator import Annotator
from signals.recipe import load_recipe
from signals.refit import Refitter
from signals.trust.watch import Watch
from signals.turns import TurnReader
from tendril.consent import ConsentFollower
from tendril.lake import open_lake
from tendril.lake.results import LakeUnavailable, OffsetsMoved
from tendril.log import EventLog, LogUnavailable
from tendril.settings import Settings
from tendril.telemetry import Telemetry

TURN_S = 5.0
KEEP_UP_EVERY_S = 60.0
OUTAGES = (LogUnavailable, LakeUnavailable, OffsetsMoved)
logger = logging.getLogger(__name__)
T = TypeVar("T")


class Housekeeping:
    """A thread with a lake of its own; idle while another extractor is on duty."""

    def __init__(self, settings: Settings, log: EventLog, telemetry: Telemetry) -> None:
        self.on_duty = threading.Event()
        """Set while this process has partition 0."""
        self._settings, self._log, self._telemetry = settings, log, telemetry
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop after what is being done."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        """Chores in turn; none of them, whatever is wrong with it, keeps another from its turn."""
        chores: Chores | None = None
        while not self._stop.wait(TURN_S):
            if not self.on_duty.is_set():
                continue
            if chores is None:
                chores = attempt(lambda: Chores(self._settings, self._log, self._telemetry))
            for chore in chores.all if chores else ():
                if not self._stop.is_set():
                    attempt(chore)
        if chores is not None:
            chores.close()


class Chores:
    """What there is to do. Raises `LogUnavailable` where the log is away."""

    def __init__(self, settings: Settings, log: EventLog, telemetry: Telemetry) -> None:
        self._settings, self._lake = settings, open_lake(settings)
        checkpoint = settings.serving.checkpoint
        self._fits = FitsFollower(log)
        self._consents = ConsentFollower(log, settings.privacy.tenants)
        turns = TurnReader(self._lake, checkpoint, self._consents.consents)
        path = settings.path(settings.signals.folder / "follow_ups.json")
        self._annotator = Annotator(log, turns, path)
        recipe = load_recipe(settings.signals.recipe)
        self._watch = Watch(settings, log, self._lake, recipe, turns, telemetry)
        self._refitter = Refitter(settings, log, self._lake, self._fits.fits)
        self._keep_up_at = time.monotonic() + KEEP_UP_EVERY_S
        self.all: tuple[Callable[[], object], ...] = (
            self._follow, self._annotate, self._look, self._refit, self._keep_up,
        )  # fmt: skip

    def close(self) -> None:
        self._watch.close()
        self._consents.close()
        self._fits.close()

    def _follow(self) -> None:
        self._fits.follow()
        self._consents.follow()

    def _annotate(self) -> None:
        self._annotator.look(time.time())

    def _look(self) -> None:
        try:
            while self._watch.look(time.time()):
                pass
        except OUTAGES:
            raise
        except Exception:  # said by `attempt`, and the windows behind it get their turn
            self._watch.skip()
            raise

    def _refit(self) -> None:
        self._refitter.look(time.time())

    def _keep_up(self) -> None:
        from tendril.lake.upkeep import keep_up

        if time.monotonic() < self._keep_up_at:
            return
        lake = self._settings.lake
        for kept in keep_up(
            self._lake,
            compact_after_files=lake.compact_after_files,
            keep_replaced_s=lake.keep_replaced_s,
        ):
            logger.info("lake: %s", kept)
        self._keep_up_at = time.monotonic() + KEEP_UP_EVERY_S


def attempt(chore: Callable[[], T]) -> T | None:
    """Its result; None where it failed, which is said."""
    try:
        return chore()
    except OUTAGES as outage:
        logger.warning("housekeeping waits: %s", outage)
    except Exception:  # the thread's outermost loop: the join goes on without it
        logger.exception("housekeeping")
    return None
