"""The demo's verdict: the shipped policy against the frozen base, and how the loop ran."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from dashboards.snapshot import LoopSnapshot
from offline_rl.autocomplete.evaluation import (
    HeldOutPrompt,
    difference,
    held_out_prompts,
    judge,
    summary,
)
from offline_rl.autocomplete.users import TEMPERATURE
from serving.engine import EngineRequest
from serving.text import SampledText, TextCodec
from serving.torch_engine.engine import TorchEngine
from shipper.staging import from_snapshot
from shipper.store import WeightStore
from tendril.cli.feedback_delay import feedback_to_served
from tendril.log import open_log
from tendril.model_folder import FIRST_VERSION
from tendril.settings import Settings

NUM_PROMPTS = 1_024
ANSWERS_PER_PROMPT = 3
BUDGET_S = 60.0
"""Of both evaluations; fewer prompts where the machine is too slow for all."""
CONCURRENT = 32
PROBE_PROMPTS = 32
JOINED = ("signals", "traces")


def build_report(
    settings: Settings, snapshot: LoopSnapshot, started_at: float, seed: int
) -> dict[str, Any]:
    """Evaluate both policies and gather what the log, the nodes and the users say."""
    log = open_log(settings)
    folder = _shipped_folder(settings, snapshot.live_version or FIRST_VERSION)
    users = json.loads((settings.workspace / "users.json").read_text())
    return {
        **evaluate(settings, folder, seed),
        "live_version": snapshot.live_version,
        "versions": msgspec.to_builtins(snapshot.counts),
        "requests": {"total": users["requests"], "failed": users["failed"],
                     "last_error": users["last_error"]},
        "events": {"acknowledged": users["events"], "refused": users["refused_events"]},
        "swap_pause_ms": _spread(snapshot.swap_pause_ms),
        "delta": _delta(settings, snapshot),
        "feedback_to_served_s": _spread(feedback_to_served(log)),
        "ledger": _ledger(snapshot, users),
        "first_suggestion_s": (users["first_suggestion_at"] or time.time()) - started_at,
        "traffic": msgspec.to_builtins(snapshot.traffic),
        "seed": seed,
        "seconds": time.time() - started_at,
    }  # fmt: skip


def evaluate(settings: Settings, shipped: Path, seed: int) -> dict[str, Any]:
    """Both policies on the same held-out prompts, at the users' temperature."""
    prompts = held_out_prompts(NUM_PROMPTS, seed=20_261_130)  # the same for every run
    base_folder = settings.serving.checkpoint
    started = time.monotonic()
    answer(settings, base_folder, prompts[:PROBE_PROMPTS], seed)
    per_prompt_s = (time.monotonic() - started) / PROBE_PROMPTS
    prompts = prompts[: max(128, int(BUDGET_S / 2 / per_prompt_s))]
    base = judge(prompts, answer(settings, base_folder, prompts, seed))
    ours = judge(prompts, answer(settings, shipped, prompts, seed))
    return {
        "base": summary(base),
        "shipped": summary(ours),
        "diff": difference(prompts, base, ours, seed),
        "evaluation": {"prompts": len(prompts), "answers_per_prompt": ANSWERS_PER_PROMPT},
    }


def answer(
    settings: Settings, folder: Path, prompts: Sequence[HeldOutPrompt], seed: int
) -> list[list[str]]:
    """Sample every prompt `ANSWERS_PER_PROMPT` times on an engine of its own."""
    codec = TextCodec(folder)
    engine = TorchEngine(
        folder, 0, max_running=CONCURRENT, max_waiting=CONCURRENT, num_threads=2, seed=seed,
        max_context_tokens=settings.serving.max_context_tokens,
        silence_token_id=codec.token_id(settings.serving.silence_token),
    )  # fmt: skip
    try:
        return asyncio.run(_answer_all(engine, codec, prompts))
    finally:
        engine.close()


async def _answer_all(
    engine: TorchEngine, codec: TextCodec, prompts: Sequence[HeldOutPrompt]
) -> list[list[str]]:
    places = asyncio.Semaphore(CONCURRENT)

    async def one(prompt: HeldOutPrompt) -> str:
        text = SampledText(codec, ())
        request = EngineRequest(
            prompt_token_ids=codec.encode(prompt.pause.prompt),
            max_tokens=prompt.max_tokens,
            temperature=TEMPERATURE,
        )
        async with places:
            async for token in engine.generate(request):
                text.add(token.token_id)
        return text.text

    async def several(prompt: HeldOutPrompt) -> list[str]:
        return await asyncio.gather(*(one(prompt) for _ in range(ANSWERS_PER_PROMPT)))

    return await asyncio.gather(*(several(prompt) for prompt in prompts))


def _shipped_folder(settings: Settings, version: int) -> Path:
    """The node's folder of `version`, fetched where the node had no time to: never another one."""
    folder = settings.path(settings.shipping.node_folder) / "versions" / str(version)
    if not folder.exists() and version == FIRST_VERSION:
        return settings.serving.checkpoint
    if not folder.exists():
        store = WeightStore(settings.path(settings.shipping.store))
        from_snapshot(store, store.manifest(version), folder)
    return folder


def _spread(spread: Any) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(spread)
    return values


def _delta(settings: Settings, snapshot: LoopSnapshot) -> dict[str, Any]:
    """Delta sizes as the store has them: one a shipped version."""
    store = WeightStore(settings.path(settings.shipping.store))
    sizes: list[int] = []
    full_bytes = 0
    for version in store.versions():
        manifest = store.manifest(version)
        full_bytes = max(file.num_bytes for file in manifest.snapshot)
        if manifest.delta is not None:
            sizes.append(manifest.delta.num_bytes)
    sizes.sort()
    median = sizes[len(sizes) // 2] if sizes else None
    return {
        "ratio_median": full_bytes / median if median else None,
        "bytes_median": median,
        "full_bytes": full_bytes,
        "num_deltas": len(sizes),
    }


def _ledger(snapshot: LoopSnapshot, users: dict[str, Any]) -> dict[str, Any]:
    """Every process's own account, and whether each answer has a trace."""
    lines = {(line.process, line.kind): line for line in snapshot.ledger}
    served = lines.get(("serving", "traces"))
    is_joined = [line for line in snapshot.ledger if (line.process, line.kind) == JOINED]
    events = lines.get(("serving", "feedback"))
    answered = users["shown"] + users["suppressed"]
    hops = {
        "answered": answered,
        "traces_accepted": served.read if served else 0,
        "traces_logged": served.outcomes["logged"] if served else 0,
        "traces_joined": sum(line.read for line in is_joined),
        "events_acknowledged": users["events"],
        "events_read": events.read if events else 0,
    }
    return {
        "balanced": bool(snapshot.ledger_balanced) and agree(hops),
        "hops": hops,
        **_by_process(snapshot),
    }


def _by_process(snapshot: LoopSnapshot) -> dict[str, Counter[str]]:
    """What was read and what became of it, all nodes and partitions together."""
    sums: dict[str, Counter[str]] = {}
    for line in snapshot.ledger:
        total = sums.setdefault(f"{line.process}.{line.kind}", Counter())
        total.update({"read": line.read, **line.outcomes})
    return sums


def agree(hops: Mapping[str, int]) -> bool:
    """Whether each hop has at least what the one before it let go: repeats add, losses take away.

    True of loops at rest only: what is on its way is in neither account.
    """
    return (
        hops["answered"] <= hops["traces_accepted"]
        and hops["traces_logged"] <= hops["traces_joined"]
        and hops["events_acknowledged"] <= hops["events_read"]
    )


def render_report(report: dict[str, Any]) -> RenderableType:
    """For a person: the two policies side by side, then the loop in a few lines."""
    table = Table(
        "held-out prompts", "base", "shipped", "change", "95 % interval", box=None,
        title_justify="left",
        title=f"\nShipped version {report['live_version']} against the frozen base",
    )  # fmt: skip
    base, ours, diff = report["base"], report["shipped"], report["diff"]
    rows = (
        ("acceptance of shown", "acceptance", "acceptance_relative", True),
        ("suggestions per decision", "shown_rate", "shown_relative", True),
        ("accepted bytes per decision", "accepted_bytes_per_decision", "accepted_bytes_relative",
         True),
        ("reward per decision", "reward_per_decision", "reward", False),
    )  # fmt: skip
    for label, key, change, relative in rows:
        interval = diff.get(f"{change}_ci95")
        shown = "{:+.1%}" if relative else "{:+.3f}"
        table.add_row(
            label, f"{base[key]:.3f}", f"{ours[key]:.3f}", shown.format(diff[change]),
            " to ".join(shown.format(x) for x in interval) if interval else "",
        )  # fmt: skip
    return Group(table, "", *_loop_lines(report))


def _loop_lines(report: dict[str, Any]) -> list[str]:
    versions, delta, requests = report["versions"], report["delta"], report["requests"]
    events = report["events"]
    pause, delay = report["swap_pause_ms"], report["feedback_to_served_s"]
    size = f"{delta['full_bytes'] / 1e6:.1f} MB"
    ratio = delta["ratio_median"]
    return [
        f"versions   {versions['published']} published, {versions['shipped']} shipped, "
        f"{versions['held']} held, {versions['rolled_back']} rolled back",
        f"requests   {requests['total']} in all, {requests['failed']} failed; first suggestion "
        f"after {report['first_suggestion_s']:.0f} s",
        f"events     {events['acknowledged']} of users, {events['refused']} refused",
        f"swaps      {_measured(pause, 'p50', 'p99', 1, 'ms held')}",
        f"deltas     {f'{ratio:.1f}x smaller than the weights ({size})' if ratio else 'none'}",
        f"feedback   {_measured(delay, 'p50', 'p90', 0, 's until served (all trained on)')}",
        f"ledger     {'balanced' if report['ledger']['balanced'] else 'NOT BALANCED'}",
    ]


def _measured(spread: dict[str, Any], middle: str, high: str, digits: int, unit: str) -> str:
    """Two quantiles; nothing measured is not a zero."""
    if spread[middle] is None:
        return "none measured"
    return f"{middle} {spread[middle]:.{digits}f}, {high} {spread[high]:.{digits}f} {unit}"
