"""What a demo says where nobody watches a picture."""

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from dashboards.loop_view import LoopView
from tendril.cli.demo_watch import News, rollback_command
from tendril.settings import Settings
from tests.dashboards.run_log import START, small_run


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(workspace=tmp_path / "demo")


def test_it_starts_with_the_addresses_and_the_way_back(settings: Settings) -> None:
    text = News(settings).start(480.0)
    for words in ("console http://127.0.0.1:8080", "API http://127.0.0.1:8000/v1", "logs ",
                  "runs for 480 s", "go back: "):  # fmt: skip
        assert words in text


def test_each_new_version_is_said_once_and_the_state_every_15_seconds(settings: Settings) -> None:
    view, news = LoopView(now=lambda: START + 100), News(settings)
    first_second = list(news.lines(view.snapshot(), 1.0))
    assert [line.split("  ")[-1] for line in first_second] == ["shipped 0 held 0"]
    versions: list[str] = []
    standing: list[str] = []
    for second, record in enumerate(small_run(), start=2):
        view.add(record, START)
        for line in news.lines(view.snapshot(), float(second)):
            (standing if "decisions" in line else versions).append(line)
    live = [int(line.split("version ")[1].split()[0]) for line in versions]
    assert live  # a change of the live version is a line of its own
    assert all(before != after for before, after in pairwise(live))
    assert live[-1] == view.snapshot().live_version
    seconds = [int(line.split()[0]) for line in standing]
    assert seconds == list(range(16, 2 + len(list(small_run())), 15))


def test_the_first_suggestion_is_said_when_the_users_saw_it(settings: Settings) -> None:
    news, snapshot = News(settings), LoopView().snapshot()
    stats = settings.workspace / "users.json"
    stats.parent.mkdir()
    stats.write_text(json.dumps({"first_suggestion_at": None}))
    assert not any("first suggestion" in line for line in news.lines(snapshot, 20.0))
    stats.write_text(json.dumps({"first_suggestion_at": time.time() - 10}))
    [line] = [line for line in news.lines(snapshot, 22.0) if "first suggestion" in line]
    assert line == "   12 s  first suggestion"
    assert not any("first suggestion" in line for line in news.lines(snapshot, 24.0))


@pytest.mark.parametrize(
    ("run_as", "expected"),
    [(".venv/bin/tendril", ".venv/bin/tendril --config 'a demo/tendril.toml' rollback"),
     ("x/__main__.py", " -m tendril.cli --config 'a demo/tendril.toml' rollback")],
)  # fmt: skip
def test_the_way_back_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_as: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / run_as)])
    command = rollback_command(Settings(workspace=tmp_path / "a demo"))
    assert command.endswith(expected)
