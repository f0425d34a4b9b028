"""How a process ends: politely on the first signal, at once on the second."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PROCESS = """
import os, sys, time
from tendril.process import run_until_stopped
from tendril.settings import Settings

def run(settings, stop):
    print("ready", flush=True)
    while not stop.is_set():
        time.sleep(0.01)
    print("stopping", flush=True)
    if sys.argv[1:] == ["slow"]:
        time.sleep(60)

run_until_stopped("test", run, Settings())
"""


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, *arguments],
        cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_status_0(number: signal.Signals) -> None:
    child = _start()
    assert _line(child) == "ready"
    child.send_signal(number)
    assert _line(child) == "stopping"
    _, errors = child.communicate(timeout=30)
    assert (child.returncode, errors) == (0, "")


def test_a_second_signal_ends_it_at_once() -> None:
    child = _start("slow")
    assert _line(child) == "ready"
    child.terminate()
    assert _line(child) == "stopping"
    child.terminate()
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGTERM
