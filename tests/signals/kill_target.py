"""A signals process that kills itself, with SIGKILL, at a named moment. Run by test_kill.py.

usage: kill_target WORKSPACE NUM_RANDOM: forks one process after another, each killed at its moment,
then one that may finish; each reads in a group of its own, so none waits for a dead one's lease.
"""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from signals.decisions import Decisions
from signals.joiner import TOPICS
from signals.process import Shift, work
from signals.workshop import Workshop
from tendril.lake import lake_root
from tendril.lake.lake import Lake
from tendril.log import LogReader, LogRecord, Offsets, SqliteLog, TopicPartition
from tendril.records import Episode, Record
from tendril.settings import LakeSettings, Settings, SignalsSettings
from tendril.telemetry import NO_TELEMETRY

WINDOW_S = 0.5
MOMENTS = [
    ("read", 1), ("read", 3), ("before log", 1), ("after log", 1), ("before lake", 1),
    ("after lake", 1), ("after lake", 2), ("before commit", 1), ("before commit", 2),
    ("after commit", 1), ("after commit", 2), ("after log", 1), ("after lake", 3),
]  # fmt: skip
LONGEST_S = 1.2


def settings_for(workspace: Path) -> Settings:
    return Settings(
        workspace=workspace,
        signals=SignalsSettings(
            feedback_window_s=WINDOW_S, revise_after_s=(0.2,), lateness_s=0.2, batch_records=20
        ),
        lake=LakeSettings(commit_interval_s=0.02),
    )


class KillSwitch:
    """Kills this process when `moment` comes for the n-th time, or after so many milliseconds."""

    def __init__(self, moment: str, n: int) -> None:
        self._moment, self._left = moment, n
        if moment == "random":
            self._left = -1
            threading.Thread(target=self._kill_later, args=(n / 1000,), daemon=True).start()

    def reached(self, moment: str) -> None:
        self._left -= moment == self._moment
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _kill_later(self, seconds: float) -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)


class FragileLog(SqliteLog):
    """Dies before or after an append of episodes."""

    def __init__(self, path: Path, switch: KillSwitch) -> None:
        super().__init__(path)
        self._switch = switch

    def append(self, records: Iterable[tuple[str, Record]]) -> None:
        records = list(records)
        episodes = any(isinstance(record, Episode) for _, record in records)
        if episodes:
            self._switch.reached("before log")
        super().append(records)
        if episodes:
            self._switch.reached("after log")


class FragileLake(Lake):
    """Dies before or after a commit."""

    switch: KillSwitch

    def append(
        self,
        table: str,
        rows: Any,
        offsets: Mapping[str, int],
        after: Mapping[str, int] | None = None,
    ) -> bool:
        self.switch.reached("before lake")
        done = super().append(table, rows, offsets, after)
        self.switch.reached("after lake")
        return done


class FragileReader:
    """Dies after a read, and around a commit of offsets."""

    def __init__(self, inner: LogReader, switch: KillSwitch) -> None:
        self._inner, self._switch = inner, switch

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        records = self._inner.poll(max_records, 0.01)
        self._switch.reached("read")
        return records

    def assignment(self) -> frozenset[TopicPartition]:
        return self._inner.assignment()

    def positions(self) -> Offsets:
        return self._inner.positions()

    def commit(self, offsets: Offsets) -> None:
        self._switch.reached("before commit")
        self._inner.commit(offsets)
        self._switch.reached("after commit")

    def committed(self) -> Offsets:
        return self._inner.committed()

    def seek(self, offsets: Offsets) -> None:
        self._inner.seek(offsets)

    def close(self) -> None:
        self._inner.close()


def extract(settings: Settings, group: str, switch: KillSwitch) -> None:
    """As the signals process does, for a moment."""
    log = FragileLog(settings.path(settings.log.path), switch)
    lake = FragileLake(lake_root(settings))
    lake.switch = switch
    reader = FragileReader(log.reader(group, TOPICS), switch)
    decisions = Decisions(log)
    shift = Shift(reader, Workshop(settings, log, lake), decisions.decided)
    stop = threading.Event()
    threading.Timer(LONGEST_S, stop.set).start()
    work(log, reader, shift, decisions, stop, settings, NO_TELEMETRY)
    shift.close()


def main(workspace: Path, num_random: int) -> None:
    rng = random.Random(0)
    moments = [*MOMENTS, *(("random", rng.randint(1, 900)) for _ in range(num_random))]
    for number, (moment, n) in enumerate([*moments, ("never", 1)]):
        child = os.fork()
        if child == 0:
            extract(settings_for(workspace), f"group-{number}", KillSwitch(moment, n))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(moment, n, "killed" if os.WIFSIGNALED(status) else f"exit {status}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
