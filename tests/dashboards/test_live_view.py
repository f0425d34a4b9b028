"""The terminal view says the fold's numbers and fits its width."""

import io

import pytest
from rich.console import Console

from dashboards.loop_view import LoopView
from tendril.cli.live_view import render, sparkline
from tests.dashboards.run_log import START, small_run


def _text(view: LoopView, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True, color_system=None)
    urls = {"console": "http://127.0.0.1:8080"}
    console.print(render(view.snapshot(), title="demo", elapsed_s=65, total_s=600, urls=urls))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_view_shows_what_matters_within_its_width(width: int) -> None:
    view = LoopView(now=lambda: START + 100)
    for record in small_run():
        view.add(record, START)
    text = _text(view, width)
    for words in (
        "live v2", "newest v4", "21 decisions", "1 failed", "100.0 %", "25.0 %", "+0.275",
        "gate held", "rolled back", "20.0x", "1:05 of 10:00", "20 joined + 1 failed", "http://127.0.0.1:8080",
        "2 shipped, 1 held, 1 rolled back",
    ):  # fmt: skip
        assert words in text
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= width
    assert len(lines) <= 30


def test_a_command_stands_below_the_picture_and_is_never_cut_off() -> None:
    console = Console(width=40, file=io.StringIO(), record=True, color_system=None)
    command = "tendril --config .tendril/demo/tendril.toml rollback"
    console.print(render(LoopView().snapshot(), command=command))
    text = console.export_text()
    assert " ".join(text.splitlines()[-2:]).replace("  ", " ").strip() == command


def test_an_empty_loop_is_shown_as_waiting() -> None:
    text = _text(LoopView(), 80)
    assert "waiting for the first request" in text
    assert "no version yet" in text


def test_a_sparkline_weighs_what_shares_a_block() -> None:
    assert sparkline([0.0, 1.0], [1, 1]) == "▁█"
    assert sparkline([0.0, None, 1.0], [1, 1, 1]) == "▁ █"
    # blocks of two: (0 * 3 + 1 * 1) / 4 = 0.25, 1.0, 0.0 on a scale of eight
    assert sparkline([0.0, 1.0, 1.0, 1.0, 0.0, 0.0], [3, 1, 1, 1, 1, 1], width=3) == "▃█▁"
    assert sparkline([None], [0]) == ""
