"""`tendril status` tells nodes apart, remembers refusals, and says what cannot be learned."""

import json
import time
from pathlib import Path

import pytest

from tendril.cli.status import print_status
from tendril.cli.supervisor import WorkspaceLock
from tendril.log import SqliteLog
from tests.builders import make_release, make_trace
from tests.dashboards.run_log import make_status


@pytest.fixture
def _workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENDRIL_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    now = time.time()
    log = SqliteLog(tmp_path / "log.db")
    log.append([("k", make_release(policy_version=2, at=now - 60))])
    log.append(
        [
            ("k", make_status(node="node-1", policy_version=2, num_running=12, num_waiting=3)),
            ("k", make_status(node="node-2", state="refused", detail="delta is torn", at=now - 90)),
            ("k", make_status(node="node-2", at=now)),
        ]
    )
    for reason in ("greedy", None, "greedy", "top_p"):
        log.append([("s", make_trace(served_at=now, untrainable=reason))])
    log.close()


@pytest.mark.usefixtures("_workspace")
def test_a_person_reads_version_load_and_last_refusal_of_each_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_status(None, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    [first] = [line.split() for line in lines if line.strip().startswith("node-1")]
    assert first[:6] == ["node-1", "2", "serving", "0", "12", "3"]
    *_, second = [line for line in lines if line.strip().startswith("node-2")]
    assert second.split()[:6] == ["node-2", "1", "serving", "1", "0", "0"]
    assert "s ago: delta is torn" in second
    assert "4 decisions, 75.0 % not to be learned from: greedy 2, top_p 1" in lines


def test_where_nothing_runs_it_says_so_and_how_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENDRIL_WORKSPACE", str(tmp_path / "w"))
    monkeypatch.setenv("COLUMNS", "300")
    log = SqliteLog(tmp_path / "w" / "log.db")
    log.append([("k", make_release(policy_version=2, at=time.time() - 600))])
    log.append([("k", make_status(policy_version=2, at=time.time() - 300))])
    log.close()
    print_status(None, as_json=False)
    said = capsys.readouterr().out.splitlines()[0]
    assert said == f"live version 2; nothing runs in {tmp_path}/w: start it with `tendril up`"
    demo = WorkspaceLock(tmp_path / "w" / "demo")
    with demo.held():
        print_status(None, as_json=False)
        assert f"--config {tmp_path}/w/demo/tendril.toml status" in capsys.readouterr().out


@pytest.mark.usefixtures("_workspace")
def test_a_program_reads_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(None, as_json=True)
    loop = json.loads(capsys.readouterr().out)["loop"]
    assert loop["traffic"]["untrainable"] == {"greedy": 2, "top_p": 1}
    assert [(n["node"], n["refusal"], n["refusing"]) for n in loop["nodes"]] == [
        ("node-1", "", False), ("node-2", "delta is torn", True),
    ]  # fmt: skip
