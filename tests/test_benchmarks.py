"""The benchmark command: what it lists, refuses and writes."""

import ast
import json
from pathlib import Path

import pytest

from benchmarks.__main__ import benchmark_names, figures_table, main, report_json
from benchmarks.figures import Figure
from benchmarks.machine import describe_machine

MET = Figure(
    metric="ratio", unit="x", ours=8.0, peer=4.0, peer_name="zstd", ratio=2.0, target=6.0, ok=True
)
PLAIN = Figure(metric="speed", unit="MB/s", ours=120.0)


def test_the_list_names_every_module_with_a_run_and_says_what_it_measures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    folder = Path(__file__).parent.parent / "benchmarks"
    names = {f.stem for f in folder.glob("*.py") if "\ndef run() -> list[Figure]:" in f.read_text()}
    assert {line.split()[0] for line in lines} == names
    assert all(len(line.split()) > 1 for line in lines)


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["--json", "out.json"]])
def test_bad_usage_exits_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2


def test_the_report_holds_machine_command_and_figures() -> None:
    report = json.loads(report_json(describe_machine(), "python -m benchmarks x", [MET, PLAIN]))
    assert report["command"] == "python -m benchmarks x"
    assert report["figures"][0] == {
        "metric": "ratio", "unit": "x", "ours": 8.0, "peer": 4.0, "peer_name": "zstd",
        "ratio": 2.0, "target": 6.0, "ok": True,
    }  # fmt: skip
    assert report["figures"][1]["ok"] is None
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["memory_gib"] > 0
    assert report["machine"]["cpu"]


def test_the_table_has_one_row_a_figure() -> None:
    assert figures_table("x", [MET, PLAIN]).row_count == 2


def test_listing_imports_no_benchmark() -> None:
    tree = ast.parse((Path(__file__).parent.parent / "benchmarks" / "__main__.py").read_text())
    imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not imported & {f"benchmarks.{name}" for name in benchmark_names()}
