"""Where the demo writes, what it deletes, and what it says when it cannot start."""

import signal
import time
from pathlib import Path

import pytest

from tendril.cli.demo_report import agree
from tendril.cli.demo_workspace import NotADemoFolder, demo_folder, prepare
from tendril.cli.supervisor import CannotStart, Supervisor
from tendril.process import end_on_signals
from tendril.settings import load_settings


def test_it_never_writes_into_the_workspace_of_a_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENDRIL_WORKSPACE", str(tmp_path / "production"))
    config = prepare(demo_folder(), seed=1)
    assert load_settings(config).workspace == tmp_path / "production" / "demo" == config.parent


def test_what_a_killed_clean_up_left_is_cleaned_up(tmp_path: Path) -> None:
    workspace = tmp_path / "a b ü"
    prepare(workspace, seed=1)
    (workspace / "store").mkdir()
    (workspace / "store" / "x").write_bytes(b"x")
    prepare(workspace, seed=1)
    assert not (workspace / "store").exists()
    for entry in ("demo", "tendril.toml"):
        (workspace / entry).unlink()
    prepare(workspace, seed=1)
    assert (workspace / "demo").exists()


def test_somebodys_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(NotADemoFolder):
        prepare(tmp_path, seed=1)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_process_that_does_not_stay_up_ends_the_start_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tendril.cli.supervisor.FIRST_BACKOFF_S", 0.01)
    supervisor = Supervisor(tmp_path, {})
    supervisor.add("serve", ["-c", "raise SystemExit(7)"])

    def start() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            supervisor.tick()
            supervisor.refuse_crash_loop()

    with pytest.raises(CannotStart, match=r"serve ended .* status 7.*logs/serve\.log"):
        start()
    supervisor.stop()


@pytest.mark.parametrize(
    ("hop", "count", "expected"),
    [("answered", 5, True), ("answered", 6, False), ("traces_joined", 3, False),
     ("traces_joined", 9, True), ("events_read", 1, False)],
)  # fmt: skip
def test_what_one_hop_let_go_must_be_in_the_next(hop: str, count: int, expected: bool) -> None:
    hops = {"answered": 4, "traces_accepted": 5, "traces_logged": 5, "traces_joined": 5,
            "events_acknowledged": 2, "events_read": 2}  # fmt: skip
    assert agree(hops | {hop: count}) is expected


def test_a_signal_during_the_evaluation_ends_it() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        end_on_signals()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
