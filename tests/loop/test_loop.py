"""The whole loop in real processes, with one after the other killed while it runs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tendril.log import SqliteLog
from tendril.records import Episode, Feedback, Record, Release, Trace, decode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
KILLED = ("serve", "gateway", "signals", "learn", "ship", "agent", "console")


def _demo(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """A headless demo below `folder`; what it prints is in `demo.log` there."""
    with (folder / "demo.log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tendril.cli", "demo", "--headless", "--report", "out.json",
             *arguments],
            cwd=folder, env={**os.environ, **environment}, stdout=output, stderr=output,
        )  # fmt: skip


def _children(folder: Path) -> dict[str, int]:
    try:
        state = json.loads((folder / ".tendril/demo/processes.json").read_bytes())
    except FileNotFoundError:
        return {}
    return {child["name"]: child["pid"] for child in state["children"] if child["pid"]}


def _wait(condition: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.2)


def _records(log: SqliteLog, record_type: type[Record]) -> list[Any]:
    reader = log.reader("test", [record_type.TOPIC])
    records: list[Any] = []
    while rows := reader.poll(1_000, 0.0):
        records += [decode(record_type, row.value) for row in rows]
    reader.close()
    return records


def test_every_process_killed_in_turn_loses_nothing_and_counts_nothing_twice(tmp_path: Path):
    demo = _demo(tmp_path, "--minutes", "2.2", "--users", "8",
                 TENDRIL_LEARNER__PUBLISH_EVERY_S="12", TENDRIL_LEARNER__BATCH_EPISODES="32",
                 TENDRIL_SHIPPING__GATE_MIN_EPISODES="10")  # fmt: skip
    try:
        log_path = tmp_path / ".tendril/demo/log.db"
        _wait(lambda: set(KILLED) <= _children(tmp_path).keys(), 60, "all processes")
        time.sleep(12)
        for name in KILLED:
            before = _children(tmp_path)[name]
            os.kill(before, signal.SIGKILL)
            _wait(lambda n=name, b=before: _children(tmp_path).get(n, b) != b, 30, f"new {name}")
            time.sleep(5)
        demo.wait(timeout=200)
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGINT)
            demo.wait(timeout=30)

    report = json.loads((tmp_path / "out.json").read_text())
    ledger = report["ledger"]
    assert ledger["balanced"], (tmp_path / "demo.log").read_text()
    log = SqliteLog(log_path)
    traces = {trace.trace_id for trace in _records(log, Trace)}
    events = {event.event_id for event in _records(log, Feedback)}
    hops = ledger["hops"]
    assert hops["answered"] <= len(traces) == hops["traces_accepted"]  # none lost, none twice
    assert hops["events_acknowledged"] <= len(events)
    joined = ledger["signals.traces"]
    assert joined["read"] - joined.get("duplicate", 0) == len(traces)
    episodes = {episode.episode_id: episode for episode in _records(log, Episode)}
    assert len(episodes) == joined["joined"]
    assert len({e.segments[0].trace_id for e in episodes.values()}) == len(episodes)
    learned = ledger["learner.episodes"]
    assert learned["read"] <= len(_records(log, Episode))  # repeats included
    # None is trained on twice, whoever sent it again.
    assert 0 < learned["trained"] <= sum(not e.held_out for e in episodes.values())
    by_state = Counter(release.state for release in _records(log, Release))
    assert by_state["gate_passed"] + by_state["gate_held"] >= 1


def test_ctrl_c_ends_every_process_of_the_demo_and_no_other(tmp_path: Path):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    demo = _demo(tmp_path, "--minutes", "5", "--users", "2")
    try:
        _wait(lambda: set(KILLED) <= _children(tmp_path).keys(), 60, "all processes")
        children = list(_children(tmp_path).values())
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=40) == 1
        for pid in children:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        if demo.poll() is None:
            demo.kill()
            demo.wait()


def test_a_second_demo_is_refused_while_the_first_evaluates_and_leaves_its_files(tmp_path: Path):
    demo = _demo(tmp_path, "--minutes", "0.4", "--users", "2")
    said = tmp_path / "demo.log"
    try:
        _wait(lambda: "evaluating" in said.read_text(), 90, "the evaluation")
        second = subprocess.run(
            [sys.executable, "-m", "tendril.cli", "demo", "--minutes", "0.2"],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        assert second.returncode == 1
        assert f"found process {demo.pid}; stop it with `tendril down`" in second.stderr
        assert (tmp_path / ".tendril/demo/users.json").exists()
        assert "first suggestion" in said.read_text()
    finally:
        demo.kill()
        demo.wait()


def test_a_version_is_shipped_and_rolled_back_by_hand_while_the_demo_runs(tmp_path: Path):
    demo = _demo(tmp_path, "--minutes", "3", "--users", "8",
                 TENDRIL_LEARNER__PUBLISH_EVERY_S="10", TENDRIL_LEARNER__BATCH_EPISODES="32",
                 TENDRIL_SHIPPING__GATE_MIN_EPISODES="100000")  # fmt: skip
    config = tmp_path / ".tendril/demo/tendril.toml"

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "tendril.cli", "--config", str(config), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout

    def loop() -> Any:
        return json.loads(run("status", "--json"))["loop"]

    def serving() -> int:
        return max((node["policy_version"] for node in loop()["nodes"]), default=0)

    try:
        _wait(lambda: config.exists() and _children(tmp_path).get("console"), 60, "the loop")
        _wait(lambda: "gate_held" in run("history"), 90, "a version that the gate held")
        assert serving() == 1
        version = str(loop()["newest_version"])
        assert "is live" not in run("ship", version)  # what the gate held needs --force
        assert "is live" in run("ship", version, "--force", "--reason", "a test")
        _wait(lambda: serving() == int(version), 20, "the node to follow")
        assert "live again" in run("rollback", "--reason", "another test")
        _wait(lambda: serving() == 1, 20, "the node to go back")
        events = [
            (event["state"], event["reason"]) for event in json.loads(run("history", "--json"))
        ]
        assert ("rolled_back", "another test") in events
        assert any(state == "promoted" and "forced" in reason for state, reason in events)
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(timeout=40)
