"""The node agent as a process that is killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shipper.agent_process import run
from tendril.files import FolderInUse, sole_user
from tendril.log import SqliteLog
from tendril.settings import Settings
from tests.shipper.bench import Bench
from tests.shipper.checkpoints import ship_versions

AGENT = """
import sys, threading
from pathlib import Path
from shipper.agent_process import run
from tendril.settings import ServingSettings, Settings

run(Settings(workspace=Path(sys.argv[1]), serving=ServingSettings(admin_port=int(sys.argv[2]))),
    threading.Event())
"""


def start_agent_process(bench: Bench) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", AGENT, str(bench.root), str(bench.engine.port)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 s in vain"
        time.sleep(0.02)


@pytest.mark.slow
def test_an_agent_killed_in_the_middle_of_staging_converges(bench: Bench) -> None:
    log = SqliteLog(bench.root / "log.db")
    ship_versions(bench.store, log, bench.checkpoint, up_to=2)
    bench.engine.stage_may_end.clear()
    first = start_agent_process(bench)
    assert bench.engine.stage_entered.wait(20)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert bench.engine.version == 1

    (bench.root / "node-1/versions/.2.killed.part").mkdir()
    bench.engine.stage_may_end.set()
    second = start_agent_process(bench)
    try:
        current = bench.root / "node-1/current.json"
        wait_for(lambda: current.exists() and b"2" in current.read_bytes())
    finally:
        second.kill()
        second.wait()
        log.close()
    assert bench.engine.digest == bench.store.manifest(2).weights_digest
    assert [p.name for p in (bench.root / "node-1/versions").iterdir()] == ["2"]


def test_a_second_agent_in_the_same_folder_is_refused_with_the_cure(tmp_path: Path) -> None:
    settings = Settings(workspace=tmp_path)
    with (
        sole_user(tmp_path / "node-1", "x"),
        pytest.raises(FolderInUse, match=r"node-1: another process.*set shipping\.node_folder"),
    ):
        run(settings, threading.Event())
