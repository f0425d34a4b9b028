"""The whole loop: `tendril demo` for several seeds, the shipped policy against the frozen base.

DEMO_SEEDS (default 1,2,3) and DEMO_MINUTES (default 10) in the environment choose the runs; each
runs in a folder of its own, alone on the machine. The reports stay in DEMO_REPORTS, where given.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure

BASE = "frozen base"


def run() -> list[Figure]:
    """All figures of all seeds."""
    seeds = [int(seed) for seed in os.environ.get("DEMO_SEEDS", "1,2,3").split(",")]
    minutes = float(os.environ.get("DEMO_MINUTES", "10"))
    figures: list[Figure] = []
    for seed in seeds:
        report = run_demo(seed, minutes)
        figures += [*learning_figures(seed, report), *loop_figures(seed, report)]
    return figures


def run_demo(seed: int, minutes: float) -> dict[str, Any]:
    """One headless demo in a fresh folder; its report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(os.environ.get("DEMO_REPORTS", folder)).absolute() / f"seed-{seed}.json"
        command = [
            sys.executable, "-m", "tendril.cli", "demo", "--headless", "--minutes", str(minutes),
            "--seed", str(seed), "--report", str(path),
        ]  # fmt: skip
        subprocess.run(command, cwd=folder, check=False)
        report: dict[str, Any] = json.loads(path.read_text())
        return report


def learning_figures(seed: int, report: dict[str, Any]) -> list[Figure]:
    """The shipped policy against the base on the same held-out prompts."""
    base, ours, diff = report["base"], report["shipped"], report["diff"]
    low, high = diff["reward_ci95"]

    def against_base(metric: str, unit: str, key: str, target: float, ok: bool) -> Figure:
        ratio = ours[key] / base[key] if base[key] > 0 else None
        return Figure(
            metric=f"seed {seed}: {metric}", unit=unit, ours=ours[key], peer=base[key],
            peer_name=BASE, ratio=ratio, target=target, ok=ok,
        )  # fmt: skip

    return [
        Figure(
            metric=f"seed {seed}: gain in reward, lower end of the 95 % interval",
            unit="per decision", ours=low, peer=high, peer_name="upper end", target=0.0,
            ok=low > 0,
        ),
        against_base(
            "reward", "per decision", "reward_per_decision", base["reward_per_decision"], low > 0
        ),
        against_base(
            "acceptance of shown (at least 1.15 x base)", "share", "acceptance",
            1.15 * base["acceptance"], diff["acceptance_relative"] >= 0.15,
        ),
        against_base(
            "suggestions shown (at least 0.6 x base)", "share", "shown_rate",
            0.6 * base["shown_rate"], diff["shown_relative"] >= -0.4,
        ),
        against_base(
            "accepted bytes (not down)", "per decision", "accepted_bytes_per_decision",
            base["accepted_bytes_per_decision"], diff["accepted_bytes_relative"] >= 0,
        ),
    ]  # fmt: skip


def loop_figures(seed: int, report: dict[str, Any]) -> list[Figure]:
    """How the loop ran, each against its limit; nothing measured misses every limit."""
    limits: Sequence[tuple[str, str, float | None, str, float]] = (
        ("versions shipped", "versions", report["versions"]["shipped"], ">=", 5),
        ("requests failed", "requests", report["requests"]["failed"], "<=", 0),
        ("requests held by a swap, p99", "ms", report["swap_pause_ms"]["p99"], "<=", 50),
        ("full weights over delta, median", "ratio", report["delta"]["ratio_median"], ">=", 8),
        ("feedback to served, p90", "s", report["feedback_to_served_s"]["p90"], "<=", 90),
        ("start to first suggestion", "s", report["first_suggestion_s"], "<=", 10),
        ("ledger balanced", "bool", float(report["ledger"]["balanced"]), ">=", 1),
        ("whole run", "s", report["seconds"], "<=", 600),
    )
    figures: list[Figure] = []
    for metric, unit, measured, sign, limit in limits:
        value = math.nan if measured is None else float(measured)
        figures.append(
            Figure(
                metric=f"seed {seed}: {metric}", unit=unit, ours=value, target=limit,
                ok=value >= limit if sign == ">=" else value <= limit,
            )
        )  # fmt: skip
    return figures
