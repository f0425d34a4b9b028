"""Weights changed under load on vLLM: how long requests are held, and whether any of them notices.

A 135M Llama, streams over HTTP without a pause, and swaps back and forth between two versions that
differ in about 1 % of their elements, through the admin port as the node agent makes them. Peer:
`reload_weights`, vLLM's own way to load a checkpoint into a running engine, between pause and
resume under the same load. SWAPS in the environment (default 100) sets how many.
"""

import asyncio
import itertools
import os
import statistics
import tempfile
import time
from bisect import bisect
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import httpx
import numpy as np

from benchmarks import services
from benchmarks.figures import Figure
from benchmarks.models import Prompts, write_llama_135m, write_neighbour
from benchmarks.services import Deployment, admin
from benchmarks.streams import Failed, Reply, clients, completion, stream
from benchmarks.traces import num_misdated, num_unmatched, records, spanning_share
from tendril.records import Trace

NUM_STREAMS = 6
NUM_PROMPT_TOKENS = 24
NUM_TOKENS = (16, 32, 64, 96)
CHANGED_SHARE = 0.01
MAX_HELD_P99_MS = 150.0
WARM_UP_S, QUIET_S = 4.0, 10.0
"""Load without swaps, before and after, for the comparison of speeds."""
RELOAD_TIMEOUT_S = 60.0
NUM_RELOADS = 3
NUM_COMPARED = 8
PEER = "vLLM reload_weights"


class Swapped(NamedTuple):
    """One version made live."""

    stage_s: float
    held_ms: float
    started_s: float
    ended_s: float
    """Of the swap, as the admin port's caller waits: every element is compared before the end."""


class Speeds(NamedTuple):
    """Tokens a second."""

    with_swaps: float
    without: float
    quiet_s: tuple[float, float]
    """When there were no swaps, from and to."""


@dataclass
class Load:
    """Streams that ask without a pause, and what became of them."""

    prompts: Prompts
    replies: list[tuple[int, Reply]] = field(default_factory=list)
    """How many tokens were asked for, and the reply."""
    failures: list[str] = field(default_factory=list)
    event_s: list[float] = field(default_factory=list)
    """When tokens came, of any stream."""
    stopped: bool = False

    @property
    def num_truncated(self) -> int:
        return sum(
            (reply.num_tokens, reply.finish_reason) != (asked, "length")
            for asked, reply in self.replies
        )

    async def keep_asking(self, session: aiohttp.ClientSession, url: str) -> None:
        """One stream after another, until stopped; the last one to its end."""
        while not self.stopped:
            asked = NUM_TOKENS[len(self.replies) % len(NUM_TOKENS)]
            [prompt] = self.prompts.take(1, NUM_PROMPT_TOKENS)
            try:
                reply = await stream(session, url, completion(prompt, asked), self._count)
            except (Failed, aiohttp.ClientError, TimeoutError) as error:
                self.failures.append(repr(error))
                await asyncio.sleep(0.1)
            else:
                self.replies.append((asked, reply))

    def _count(self) -> None:
        self.event_s.append(time.perf_counter())

    async def tokens_per_s(self, meanwhile: Awaitable[None]) -> float:
        """How fast tokens came while that went on; an event is a token."""
        num_before, started = len(self.event_s), time.perf_counter()
        await meanwhile
        return (len(self.event_s) - num_before) / (time.perf_counter() - started)


def run() -> list[Figure]:
    """Three engines, one after the other; four to five minutes on two cores."""
    num_swaps = int(os.environ.get("SWAPS", "100"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = write_llama_135m(folder / "base")
        changed = write_neighbour(folder / "changed", base, CHANGED_SHARE)
        ours = _deployment(folder / "ours", base)
        with services.node(ours):
            load, swaps, speeds = asyncio.run(_swap_under_load(ours, (base, changed), num_swaps))
            print("held, ms:", *(f"{swap.held_ms:.0f}" for swap in swaps))
            answers = _greedy(ours.node_url, base)
        traces = records(ours, Trace)
        fresh = _deployment(folder / "fresh", (base, changed)[num_swaps % 2])
        with services.node(fresh):
            expected = _greedy(fresh.node_url, base)
        peer = _deployment(folder / "peer", base)
        reload_ms = asyncio.run(_reload_under_load(peer, base, changed))
    for failure in load.failures[:3]:
        print("failed:", failure)
    return [
        *held_figures([swap.held_ms for swap in swaps], reload_ms),
        *_exact_figures(load, traces, num_swaps),
        _none("log-probs unlike a fresh engine's", "prompts", num_different(answers, expected)),
        gap_figure(load.event_s, swaps, speeds.quiet_s),
        *_speed_figures(speeds, swaps, traces),
    ]


def _deployment(folder: Path, checkpoint: Path) -> Deployment:
    return services.write_deployment(
        folder, checkpoint=str(checkpoint), engine="vllm", silence_token="",
        max_running=8, lent_slots=0,
    )  # fmt: skip


async def _swap_under_load(
    ours: Deployment, folders: Sequence[Path], num_swaps: int
) -> tuple[Load, list[Swapped], Speeds]:
    load, swaps = Load(Prompts(folders[0])), list[Swapped]()

    async def swap_all() -> None:
        for number in range(1, num_swaps + 1):
            swaps.append(await asyncio.to_thread(_swap, ours, number + 1, folders[number % 2]))

    async with _asking(load, ours.node_url):
        quiet_from = time.perf_counter()
        before = await load.tokens_per_s(asyncio.sleep(QUIET_S))
        quiet_to = time.perf_counter()
        during = await load.tokens_per_s(swap_all())
        after = await load.tokens_per_s(asyncio.sleep(QUIET_S))
    return load, swaps, Speeds(during, (before + after) / 2, (quiet_from, quiet_to))


@asynccontextmanager
async def _asking(load: Load, url: str) -> AsyncIterator[None]:
    """Under load from a while before the block until its end; all streams are read out."""
    async with clients(NUM_STREAMS) as session, asyncio.TaskGroup() as tasks:
        for _ in range(NUM_STREAMS):
            tasks.create_task(load.keep_asking(session, url))
        await asyncio.sleep(WARM_UP_S)
        try:
            yield
        finally:
            load.stopped = True


def _swap(ours: Deployment, policy_version: int, folder: Path) -> Swapped:
    started = time.perf_counter()
    admin(ours, "stage", policy_version=policy_version, folder=str(folder))
    staged = time.perf_counter()
    result = admin(ours, "swap", policy_version=policy_version)
    return Swapped(staged - started, result["pause_ms"], staged, time.perf_counter())


async def _reload_under_load(peer: Deployment, base: Path, changed: Path) -> list[float]:
    """How long vLLM's own server is paused for `reload_weights`, in ms, each time."""
    with services.bare_vllm(peer, base, VLLM_SERVER_DEV_MODE="1") as url:
        load = Load(Prompts(base, seed=1))
        async with _asking(load, url):
            held_ms = []
            for i in range(NUM_RELOADS):
                held_ms.append(await asyncio.to_thread(_reload, url, (changed, base)[i % 2]))
                await asyncio.sleep(1)
        return held_ms


def _reload(url: str, folder: Path) -> float:
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    with httpx.Client(base_url=url, headers=services.HEADERS, timeout=RELOAD_TIMEOUT_S) as http:
        started = time.perf_counter()
        http.post("/pause", params={"mode": "keep"}).raise_for_status()
        try:
            http.post("/collective_rpc", json=reload).raise_for_status()
        finally:
            http.post("/resume").raise_for_status()
        return (time.perf_counter() - started) * 1000


def _greedy(url: str, folder: Path) -> list[dict[str, Any]]:
    """Tokens, and log-probs of the most likely ones, one prompt at a time."""
    answers = []
    for prompt in Prompts(folder, seed=2).take(NUM_COMPARED, NUM_PROMPT_TOKENS):
        body = completion(
            prompt, 16, temperature=0, logprobs=5, stream=False, return_token_ids=True
        )
        del body["stream_options"]
        reply = httpx.post(f"{url}/v1/completions", json=body, headers=services.HEADERS, timeout=60)
        [choice] = reply.raise_for_status().json()["choices"]
        answers.append({"ids": choice["token_ids"], "logprobs": choice["logprobs"]})
    return answers


def num_different(answers: Sequence[object], expected: Sequence[object]) -> int:
    """Compared as they were written: to the last bit of every number."""
    return sum(a != b for a, b in zip(answers, expected, strict=True))


def held_figures(held_ms: Sequence[float], reload_ms: Sequence[float]) -> list[Figure]:
    """p50 and p99 of how long no token could be sampled."""
    theirs = statistics.median(reload_ms)
    figures = []
    for q in (50, 99):
        own = float(np.percentile(held_ms, q))
        figures.append(
            Figure(
                metric=f"requests held by a swap, p{q}", unit="ms", ours=own,
                peer=theirs, peer_name=f"{PEER}, median", ratio=own / theirs,
                target=MAX_HELD_P99_MS if q == 99 else None,
                ok=own < MAX_HELD_P99_MS if q == 99 else None,
            )
        )  # fmt: skip
    return figures


def gap_figure(
    event_s: Sequence[float], swaps: Sequence[Swapped], quiet_s: tuple[float, float]
) -> Figure:
    """What users see: how long no stream had a token, in a swap and in as long a time without."""
    length_s = statistics.median(swap.ended_s - swap.started_s for swap in swaps)
    starts = np.arange(quiet_s[0], max(quiet_s[1] - length_s, quiet_s[0] + 1e-9), length_s)
    own = [longest_gap_s(event_s, swap.started_s, swap.ended_s) for swap in swaps]
    quiet = [longest_gap_s(event_s, start, start + length_s) for start in starts.tolist()]
    ours, theirs = statistics.median(own) * 1000, statistics.median(quiet) * 1000
    return Figure(
        metric="longest time without a token, median swap", unit="ms", ours=ours,
        peer=theirs, peer_name="as long without a swap", ratio=ours / theirs,
    )  # fmt: skip


def longest_gap_s(event_s: Sequence[float], start: float, end: float) -> float:
    """Between two events in a row, of those that touch the time from `start` to `end`."""
    first, last = bisect(event_s, start), bisect(event_s, end)
    near = event_s[max(0, first - 1) : last + 1]
    return max((b - a for a, b in itertools.pairwise(near)), default=0.0)


def _exact_figures(load: Load, traces: Sequence[Trace], num_swaps: int) -> list[Figure]:
    trace_ids = [reply.trace_id for _, reply in load.replies]
    return [
        _none("requests failed", "requests", len(load.failures)),
        _none("replies truncated", "replies", load.num_truncated),
        _none("replies without exactly one trace", "replies", num_unmatched(trace_ids, traces)),
        _none("traces with wrong versions", "traces", num_misdated(traces, num_swaps + 1)),
    ]


def _none(metric: str, unit: str, num: int) -> Figure:
    return Figure(metric=metric, unit=unit, ours=num, target=0, ok=num == 0)


def _speed_figures(
    speeds: Speeds, swaps: Sequence[Swapped], traces: Sequence[Trace]
) -> list[Figure]:
    stage_s = statistics.median(swap.stage_s for swap in swaps)
    swap_s = statistics.median(swap.ended_s - swap.started_s for swap in swaps)
    return [
        Figure(
            metric=f"tokens a second, {NUM_STREAMS} streams, swaps back to back", unit="tokens/s",
            ours=speeds.with_swaps, peer=speeds.without, peer_name="without swaps",
            ratio=speeds.with_swaps / speeds.without,
        ),
        Figure(metric="stage, median", unit="s", ours=stage_s),
        Figure(metric="swap and its check, median", unit="s", ours=swap_s),
        Figure(metric="replies by several versions", unit="share", ours=spanning_share(traces)),
        Figure(metric="swaps", unit="swaps", ours=len(swaps)),
    ]  # fmt: skip
