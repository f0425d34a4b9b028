"""The supervisor: brings back what died, ends what it started, and nothing else."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tendril.cli.supervisor import AlreadyRunning, Supervisor, WorkspaceLock, supervise

PROJECT = Path(__file__).parents[2]
SLEEP = ["-c", "import time; time.sleep(60)"]


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(tmp_path, {"PYTHONPATH": str(PROJECT)}, stop_s=3.0)
    yield made
    made.stop()


def _until(condition: Callable[[], Any], tick: Callable[[], None] = lambda: None) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        tick()
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _state(workspace: Path) -> dict[str, Any]:
    children = json.loads((workspace / "processes.json").read_bytes())["children"]
    return {child["name"]: child for child in children}


def test_a_killed_child_comes_back_after_a_growing_pause(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.add("a", SLEEP)
    pauses = []
    for restarts in (1, 2):
        [child] = supervisor.children()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        while supervisor.children()[0].restarts < restarts:
            supervisor.tick()
            time.sleep(0.02)
        pauses.append(time.monotonic() - killed_at)
    assert 0.5 <= pauses[0] < pauses[1]
    assert pauses[1] >= 1.0
    [child] = supervisor.children()
    assert (child.last_exit, _state(tmp_path)["a"]["restarts"]) == (-signal.SIGKILL, 2)
    assert child.pid is not None
    assert _alive(child.pid)


def test_stop_ends_every_child_and_no_other_process(supervisor: Supervisor, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, *SLEEP]) as unrelated:
        supervisor.add("a", SLEEP)
        supervisor.add("b", SLEEP)
        pids = [child.pid for child in supervisor.children()]
        assert all(pid is not None and _alive(pid) for pid in pids)
        supervisor.stop()
        assert not any(pid is not None and _alive(pid) for pid in pids)
        assert unrelated.poll() is None
        unrelated.kill()
    supervisor.tick()
    assert [child.pid for child in supervisor.children()] == [None, None]
    assert {name: child["last_exit"] for name, child in _state(tmp_path).items()} == {
        "a": -signal.SIGTERM, "b": -signal.SIGTERM,
    }  # fmt: skip


def test_one_child_can_end_for_good(supervisor: Supervisor) -> None:
    supervisor.add("a", SLEEP)
    supervisor.add("b", SLEEP)
    supervisor.end("a")
    for _ in range(8):
        supervisor.tick()
        time.sleep(0.1)
    assert [child.pid is None for child in supervisor.children()] == [True, False]


def test_a_child_that_ignores_the_request_is_killed_in_time(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, {"PYTHONPATH": str(PROJECT)}, stop_s=0.3)
    supervisor.add("deaf", ["-m", "tests.cli.stubborn", "deaf", str(tmp_path / "pids")])
    _until((tmp_path / "pids").exists)
    started = time.monotonic()
    supervisor.stop()
    assert 0.25 < time.monotonic() - started < 3
    assert supervisor.children()[0].last_exit == -signal.SIGKILL


@pytest.mark.slow
def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = [sys.executable, "-m", "tests.cli.stubborn", "group", str(pids)]
    with subprocess.Popen(command, cwd=PROJECT) as group:
        _until(lambda: pids.exists() and pids.read_text())
        child = int(pids.read_text())
        assert _alive(child)
        group.kill()
    log = tmp_path / "logs" / "child.log"
    _until(lambda: "the supervisor has gone; stopping" in log.read_text())
    _until(lambda: not _alive(child) or _is_zombie(child))


def _is_zombie(pid: int) -> bool:
    """Ended, and whoever inherited it has not looked yet."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False)
    return found.stdout.strip().startswith(b"Z")


def test_output_goes_to_one_file_a_child_and_is_kept_across_restarts(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.add("a", ["-c", "import sys; print('out'); sys.exit('err')"])
    _until(lambda: supervisor.children()[0].restarts == 1, supervisor.tick)
    _until(lambda: (tmp_path / "logs/a.log").read_text() == "out\nerr\n" * 2 or None)
    _until(lambda: supervisor.children()[0].last_exit == 1, supervisor.tick)


def test_the_state_file_is_whole_at_every_moment(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.add("a", ["-c", ""])
    stop, errors = threading.Event(), []

    def watch() -> None:
        while not stop.is_set():
            try:
                _state(tmp_path)
            except (ValueError, KeyError, OSError) as error:
                errors.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(200):
        supervisor._write_state()
    stop.set()
    watcher.join()
    assert not errors


def test_a_full_disk_does_not_end_what_runs(
    supervisor: Supervisor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "processes.json").mkdir()  # nothing can be renamed over a folder
    supervisor.add("a", SLEEP)
    pid = supervisor.children()[0].pid
    assert pid is not None
    assert _alive(pid)
    assert "cannot write" in capsys.readouterr().err


def test_supervise_ends_its_children_when_told(supervisor: Supervisor) -> None:
    supervisor.add("a", SLEEP)
    stop = threading.Event()
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    supervise(supervisor, stop)
    timer.join()
    assert supervisor.children()[0].last_exit == -signal.SIGTERM


def test_one_supervisor_a_workspace(tmp_path: Path) -> None:
    first, second = WorkspaceLock(tmp_path), WorkspaceLock(tmp_path)
    assert first.holder() is None
    first.acquire()
    assert second.holder() == os.getpid()
    with pytest.raises(AlreadyRunning, match=rf"found process {os.getpid()}; .*tendril down"):
        second.acquire()
    first.release()
    assert second.holder() is None
    second.acquire()
    second.release()
