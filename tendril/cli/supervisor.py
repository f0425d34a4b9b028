"""Runs one process of each kind on this machine, and brings a dead one back.

Each child writes to `<workspace>/logs/<name>.log`. Only children started here are ever signalled.
"""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from tendril.files import WorkspaceUnwritable, write_whole
from tendril.process import PARENT_VARIABLE

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 30.0
STABLE_S = 20.0
"""A process that lived this long starts again without back-off."""
CRASH_LOOP = 3
STOP_S = 15.0
"""How long a child may take to end before it is killed."""
CHECK_S = 0.1
PROBE_S = 0.2
"""Who asks for the holder of a lock has it for a moment: a supervisor tries again for so long."""
LAST_BYTES = 4_096
"""Of a log, to find its last line in."""


class AlreadyRunning(RuntimeError):
    """Another supervisor holds this workspace."""


class CannotStart(RuntimeError):
    """A process ended again and again before it did its work."""


class Child(msgspec.Struct, kw_only=True):
    """One supervised process, as `tendril status` shows it."""

    name: str
    pid: int | None = None
    restarts: int = 0
    started_at: float = 0.0
    last_exit: int | None = None
    last_words: str = ""
    """The last line that it wrote before it ended."""


@dataclass(slots=True)
class _Slot:
    """A child and what it takes to run it."""

    child: Child
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    backoff_s: float = FIRST_BACKOFF_S
    start_at: float = 0.0
    ended: bool = field(default=False)
    """Stopped on purpose."""


class WorkspaceLock:
    """One supervisor a workspace; the lock goes with its process, however that ends."""

    def __init__(self, workspace: Path) -> None:
        self._path = workspace / "supervisor.lock"
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Raises `AlreadyRunning` naming the holder."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+")
        deadline = time.monotonic() + PROBE_S
        while not _try_lock(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                file.close()
                raise AlreadyRunning(
                    f"{self._path.parent}: expected no supervisor, found process {self.holder()}; "
                    "stop it with `tendril down`, or choose another TENDRIL_WORKSPACE"
                )
            time.sleep(PROBE_S / 10)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it for the block. Raises as `acquire` does."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def holder(self) -> int | None:
        """The process that holds the lock, None where nobody does."""
        try:
            with self._path.open() as file:
                return None if _try_lock(file, fcntl.LOCK_SH) else int(file.read())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def release(self) -> None:
        if self._file is not None:
            self._file.close()


def _try_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Supervisor:
    """See the module. Call `tick` often, `stop` at the end."""

    def __init__(
        self, workspace: Path, environment: dict[str, str], *, stop_s: float = STOP_S
    ) -> None:
        self._workspace, self._stop_s = workspace, stop_s
        self._environment = {
            **os.environ, **environment, PARENT_VARIABLE: str(os.getpid()),
            "OMP_WAIT_POLICY": "passive",  # idle threads of one process must not starve another
        }  # fmt: skip
        self._slots: dict[str, _Slot] = {}

    def add(self, name: str, arguments: Sequence[str]) -> None:
        """Start `python ARGUMENTS` now and keep it running."""
        slot = _Slot(Child(name=name), [sys.executable, *arguments])
        self._slots[name] = slot
        self._start(slot)
        self._write_state()

    def tick(self) -> None:
        """Notice dead children and start them again when their back-off is over."""
        changed = False
        for slot in self._slots.values():
            if slot.process is not None and slot.process.poll() is not None:
                self._note_exit(slot)
                changed = True
            if slot.process is None and not slot.ended and time.monotonic() >= slot.start_at:
                slot.child.restarts += 1
                self._start(slot)
                changed = True
        if changed:
            self._write_state()

    def children(self) -> list[Child]:
        return [slot.child for slot in self._slots.values()]

    def log_of(self, child: Child) -> Path:
        return self._workspace / "logs" / f"{child.name}.log"

    def refuse_crash_loop(self) -> None:
        """Raises `CannotStart` naming a child that was brought back `CRASH_LOOP` times."""
        for child in self.children():
            if child.restarts >= CRASH_LOOP:
                raise CannotStart(
                    f"{child.name} ended {child.restarts} times, last with status "
                    f"{child.last_exit}: {child.last_words}; more in {self.log_of(child)}"
                )

    def end(self, name: str) -> None:
        """Stop one child for good."""
        self._stop([self._slots[name]])

    def stop(self) -> None:
        """Stop every child, the newest first, and wait; who does not end in time is killed."""
        self._stop(list(reversed(self._slots.values())))

    def _start(self, slot: _Slot) -> None:
        log = self.log_of(slot.child)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            slot.process = subprocess.Popen(
                slot.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=self._environment,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone; it ends the rest
            )  # fmt: skip
        slot.child.pid = slot.process.pid
        slot.child.started_at = time.time()

    def _note_exit(self, slot: _Slot) -> None:
        assert slot.process is not None
        slot.child.last_exit, slot.child.pid = slot.process.returncode, None
        slot.child.last_words = _last_line(self.log_of(slot.child))
        slot.process = None
        lived_s = time.time() - slot.child.started_at
        stable = lived_s >= STABLE_S
        slot.start_at = time.monotonic() + (0.0 if stable else slot.backoff_s)
        slot.backoff_s = FIRST_BACKOFF_S if stable else min(slot.backoff_s * 2, MAX_BACKOFF_S)

    def _stop(self, slots: Sequence[_Slot]) -> None:
        for slot in slots:
            slot.ended = True
            if slot.process is not None and slot.process.poll() is None:
                slot.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self._stop_s
        for slot in slots:
            if slot.process is None:
                continue
            try:
                slot.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                slot.process.kill()
                slot.process.wait()
            slot.child.last_exit, slot.child.pid = slot.process.returncode, None
            slot.process = None
        self._write_state()

    def _write_state(self) -> None:
        state = msgspec.json.encode({"children": self.children(), "at": time.time()})
        try:
            write_whole(self._workspace / "processes.json", state)
        except WorkspaceUnwritable as error:  # a full disk must not end what runs
            print(f"supervisor: {error}", file=sys.stderr)


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def supervise(
    supervisor: Supervisor, stop: threading.Event, look: Callable[[], None] = lambda: None
) -> None:
    """Keep the children running until `stop`, then end them; calls `look` again and again."""
    try:
        while not stop.wait(CHECK_S):
            supervisor.tick()
            look()
    finally:
        supervisor.stop()
