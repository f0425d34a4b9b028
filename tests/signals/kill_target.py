"""A joining process that kills itself, with SIGKILL, at a named moment. Run by test_kill.py.

usage: kill_target LOG STATE: forks one joiner after another, each killed at its moment, then one
that may finish; each reads in a group of its own, so none waits for a dead one's lease.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from signals.joiner import TOPICS, Joiner
from signals.process import join_while_owner
from signals.recipe import load_recipe
from signals.state import State
from tendril.log import LogReader, LogRecord, Offsets, SqliteLog
from tendril.records import Episode, Record

BATCH = 5
WINDOW_S = 3_600.0
MOMENTS = [
    ("read", 1), ("state", 1), ("before append", 1), ("after append", 1),
    ("read", 3), ("state", 2), ("state", 4), ("before append", 2), ("after append", 2),
    ("after append", 1), ("random", 2), ("random", 5), ("random", 9),
]  # fmt: skip


class KillSwitch:
    """Kills this process when `moment` comes for the n-th time."""

    def __init__(self, moment: str, n: int) -> None:
        self._moment, self._left = moment, n
        if moment == "random":
            self._left = -1
            threading.Thread(target=self._kill_later, args=(n / 500,), daemon=True).start()

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
            self._switch.reached("before append")
        super().append(records)
        if episodes:
            self._switch.reached("after append")


class FragileReader:
    """Dies after a read."""

    def __init__(self, inner: LogReader, switch: KillSwitch) -> None:
        self._inner, self._switch = inner, switch

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        records = self._inner.poll(max_records, 0.0)
        self._switch.reached("read")
        return records

    def commit(self, offsets: Offsets) -> None:
        self._inner.commit(offsets)

    def committed(self) -> Offsets:
        return self._inner.committed()

    def seek(self, offsets: Offsets) -> None:
        self._inner.seek(offsets)

    def close(self) -> None:
        self._inner.close()


class FragileJoiner(Joiner):
    """Dies right after a transaction of the state; its clock is a day ahead of the log's."""

    switch: KillSwitch

    def step(self, records: Sequence[LogRecord], *, now: float, caught_up: bool) -> bool:
        more = super().step(records, now=now + 86_400.0, caught_up=caught_up)
        self.switch.reached("state")
        return more


def join(log_path: Path, state_path: Path, group: str, switch: KillSwitch) -> None:
    log = FragileLog(log_path, switch)
    joiner = FragileJoiner(
        State(state_path), load_recipe(None), feedback_window_s=WINDOW_S, held_out_share=0.1
    )
    joiner.switch = switch
    reader = FragileReader(log.reader(group, TOPICS), switch)
    reader.seek(joiner.offsets())
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    join_while_owner(log, reader, joiner, stop, batch_records=BATCH)


def main(log_path: Path, state_path: Path) -> None:
    for number, (moment, n) in enumerate([*MOMENTS, ("never", 1)]):
        child = os.fork()
        if child == 0:
            join(log_path, state_path, f"group-{number}", KillSwitch(moment, n))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(moment, n, "killed" if os.WIFSIGNALED(status) else f"exit {status}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
