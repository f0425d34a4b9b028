"""`python -m benchmarks NAME [--json out.json]` runs one benchmark; `--list` names them all.

A benchmark is a module here with `run() -> list[Figure]`. Exit 0: every figure with a target met
it. 1: one missed it. 2: bad usage.
"""

import argparse
import ast
import importlib
import shlex
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure
from benchmarks.machine import describe_machine
from tendril.files import write_whole

FOLDER = Path(__file__).parent
WIDTH_IN_A_FILE = 140


def main(argv: list[str]) -> int:
    """Parse, run one benchmark, print and write what it measured."""
    names = benchmark_names()
    arguments = build_parser(names).parse_args(argv)
    if arguments.list:
        print("\n".join(f"{name:<20} {what}" for name, what in names.items()))
        return 0
    console = Console(width=None if sys.stdout.isatty() else WIDTH_IN_A_FILE)
    command = shlex.join(["python", "-m", "benchmarks", *argv])
    machine = describe_machine()
    console.print(" · ".join(f"{key} {value}" for key, value in machine.items()), style="dim")
    console.print(f"$ {command}")
    figures: list[Figure] = importlib.import_module(f"benchmarks.{arguments.name}").run()
    console.print(figures_table(arguments.name, figures))
    if arguments.json:
        write_whole(arguments.json, report_json(machine, command, figures))
    return 1 if any(figure.ok is False for figure in figures) else 0


def benchmark_names() -> dict[str, str]:
    """Every module here that defines `run`, with the first line of its docstring; none imported."""
    found: dict[str, str] = {}
    for file in sorted(FOLDER.glob("*.py")):
        tree = ast.parse(file.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
            found[file.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def build_parser(names: dict[str, str]) -> argparse.ArgumentParser:
    """The command line; a name that is no benchmark is bad usage and lists those that are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", choices=list(names), help="the benchmark to run")
    which.add_argument("--list", action="store_true", help="name every benchmark")
    parser.add_argument("--json", type=Path, help="write machine, command and figures here")
    return parser


def figures_table(name: str, figures: list[Figure]) -> Table:
    """One row a figure: ours beside a peer's and the target."""
    table = Table("metric", "ours", "unit", "peer", "ratio", "target", "ok", title=name)
    for figure in figures:
        peer = "" if figure.peer is None else f"{figure.peer:.4g} ({figure.peer_name})"
        ok = {None: "", True: "yes", False: "NO"}[figure.ok]
        ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}"
        target = "" if figure.target is None else str(figure.target)
        table.add_row(figure.metric, f"{figure.ours:.4g}", figure.unit, peer, ratio, target, ok)
    return table


def report_json(
    machine: dict[str, str | int | float], command: str, figures: list[Figure]
) -> bytes:
    """What `--json` writes."""
    report = {"machine": machine, "command": command, "figures": figures}
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
