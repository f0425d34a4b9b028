"""`tendril fit-reward`: an early reward learned from how things ended, if it is surely better."""

import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from signals.learned.from_lake import observations
from signals.learned.model import fit_learned
from signals.learned.rows import split
from signals.learned.verdict import Verdict, judge_candidate
from tendril.files import write_whole
from tendril.lake import open_lake
from tendril.settings import load_settings

DAY_S = 86_400.0


class RewardRefused(ValueError):
    """There is nothing to learn from."""


def fit_reward(config: Path | None, out: Path, *, days: float, later_days: float) -> int:
    """Exit status: 0 where it is written, 1 where it is no better. Raises `RewardRefused`."""
    now = time.time()
    rows = observations(open_lake(load_settings(config)), now - days * DAY_S)
    parts = split(rows, now - later_days * DAY_S)
    if not parts.train:
        raise RewardRefused(
            f"expected traces of the last {days:g} days whose end was known {later_days:g} days "
            f"ago, got {len(rows)} in all and none of those"
        )
    try:
        candidate = fit_learned(parts.train, parts.calibrate)
    except ValueError as error:
        raise RewardRefused(str(error)) from error
    verdict = judge_candidate(candidate, parts)
    _print(verdict, [len(part) for part in parts])
    if not verdict.ships:
        return 1
    write_whole(out, msgspec.json.format(msgspec.json.encode(candidate, order="sorted")))
    print(f'written: put learned = "{out.name}" into a recipe beside it, and see what it changes')
    print("with tendril replay --recipe before anything trains on it")
    return 0


def _print(verdict: Verdict, sizes: list[int]) -> None:
    console = Console(markup=False)
    console.print("rows: {} to train, {} to calibrate, {} later, of other users".format(*sizes))
    table = Table("later window", "learned", "recipe", "gain, 95 %", box=None)
    for name, ours, default, gain in (
        ("AUC", verdict.auc, verdict.default_auc, verdict.auc_gain),
        ("Brier score", verdict.brier, verdict.default_brier, verdict.brier_gain),
    ):
        cells = [_figure(ours), _figure(default)]
        table.add_row(name, *cells, "-" if gain is None else f"{gain[0]:+.4f} to {gain[1]:+.4f}")
    console.print(table)
    for reason in verdict.reasons:
        console.print(f"not better: {reason}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
