"""Ten thousand requests of which many are given up: memory, traces and slots afterwards.

Clients leave before the first byte, in the middle, and after the end, from streams and whole
replies, with one choice or two. Our gateway stands before our node, on the torch engine, then on
vLLM. Every request carries its number, by which its traces are found. DISCONNECTS in the
environment (default 10000) sets how many requests, DISCONNECT_ENGINES (torch,vllm) on what.
"""

import asyncio
import contextlib
import gc
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import aiohttp
import psutil

from benchmarks import services
from benchmarks.figures import Figure
from benchmarks.services import Deployment, admin
from benchmarks.streams import clients
from benchmarks.traces import records
from tendril.records import Ledger, Trace

Leaving = Literal["before", "during", "after", "never"]
LEAVINGS: Mapping[Leaving, float] = {"before": 0.25, "during": 0.3, "after": 0.15, "never": 0.3}
NUM_AT_ONCE = 24
MAX_WARM_UP = 8_000
"""oneDNN keeps compiled code for each shape of batch, up to a number: until most have been seen, an
engine on a CPU grows with the requests, whoever leaks."""
MAX_FIRST_WAIT_S = 0.06
"""Who leaves before the first byte does so at a random moment up to here."""
MAX_MEMORY_RATIO = 1.05
IDLE_S, SETTLE_S = 30.0, 4.0
FEW_BLOCKS = ("--num-gpu-blocks-override", "256")
"""A KV cache that the warm-up fills: an untouched page is no memory yet, so a large one grows with
the first requests, whoever leaks."""


class Asked(NamedTuple):
    """One request, and when its client leaves."""

    number: int
    path: str
    body: dict[str, Any]
    leaving: Leaving
    leave_after: float
    """Seconds for `before`, events or reads for `during`."""

    @property
    def label(self) -> str:
        return f"request-{self.number}"


class Seen(NamedTuple):
    """What its client saw of a request; None: nothing at all."""

    asked: Asked
    status: int | None = None
    trace_id: str | None = None
    ended: bool = False
    """The whole reply was read."""


class Kept(NamedTuple):
    """How requests and traces fit together."""

    doubled: int
    """Traces that came more than once."""
    unkept: int
    """Requests whose client saw a token of theirs, or all of the reply, without their traces."""
    untraced: int
    """Requests without any trace: given up before they sampled."""
    empty: int
    """Traces without a token: of requests given up before the first."""
    total: int


def run() -> list[Figure]:
    """Both engines; six to eight minutes on two cores."""
    num = int(os.environ.get("DISCONNECTS", "10000"))
    engines = os.environ.get("DISCONNECT_ENGINES", "torch,vllm").split(",")
    with tempfile.TemporaryDirectory() as folder:
        return [
            figure for engine in engines for figure in _figures(Path(folder) / engine, engine, num)
        ]


def _figures(folder: Path, engine: str, num: int) -> list[Figure]:
    deployment = services.write_deployment(
        folder, engine=engine, explore_share=0.5, vllm_args=FEW_BLOCKS
    )
    held_file = folder / "held.json"
    command = [sys.executable, "-m", "benchmarks.disconnects", str(deployment.config), held_file]
    node_is_ready = f"{deployment.node_url}/ready"
    num_warm_up = min(num, MAX_WARM_UP)
    asked = list(requests(num_warm_up + num, random.Random(0)))
    with (
        services.running([*map(str, command)], node_is_ready, folder / "node.log") as node,
        services.gateway(deployment) as gateway,
    ):
        seen = asyncio.run(_ask_all(deployment.gateway_url, asked[:num_warm_up]))
        _settle(deployment)
        before = _memory(gateway, node)
        started = time.perf_counter()
        seen += asyncio.run(_ask_all(deployment.gateway_url, asked[num_warm_up:]))
        took_s = time.perf_counter() - started
        num_inside = _settle(deployment)
        after = _memory(gateway, node)
    held = json.loads(held_file.read_text()) | {"requests in the engine": num_inside}
    kept = kept_of(seen, records(deployment, Trace))
    ledger = records(deployment, Ledger)[-1]
    is_even = ledger.balanced and ledger.outcomes["traces"].get("logged") == kept.total
    return [
        *(_memory_figure(f"{engine}: {name}", before[name], after[name]) for name in before),
        *_kept_figures(engine, kept),
        *(_none(f"{engine}: {what} still held", "held", num) for what, num in held.items()),
        _none(f"{engine}: requests refused or failed", "requests", num_failed(seen)),
        _none(f"{engine}: ledgers that do not balance", "ledgers", not is_even),
        Figure(metric=f"{engine}: requests a second", unit="1/s", ours=num / took_s),
    ]  # fmt: skip


def requests(num: int, rng: random.Random) -> Iterable[Asked]:
    """Chats and completions, most of them streamed, and how each client leaves."""
    for number in range(num):
        leaving: Leaving = rng.choices(list(LEAVINGS), list(LEAVINGS.values()))[0]
        body: dict[str, Any] = {
            "model": "tendril", "max_tokens": rng.choice([1, 4, 12, 24]), "temperature": 1.0,
            "n": rng.choice([1, 1, 1, 2]), "stream": rng.random() < 0.8,
            "user": f"user-{number % 50}",
        }  # fmt: skip
        text = f"def f{rng.randrange(10**6)}("
        if rng.random() < 0.5:
            path, body = "/v1/completions", body | {"prompt": text}
        else:
            messages = [{"role": "user", "content": text}]
            path, body = "/v1/chat/completions", body | {"messages": messages}
        wait = rng.uniform(0, MAX_FIRST_WAIT_S) if leaving == "before" else rng.randint(1, 6)
        yield Asked(number, path, body, leaving, wait)


async def _ask_all(url: str, requests: Sequence[Asked]) -> list[Seen]:
    seen, waiting = list[Seen](), iter(requests)

    async with clients(NUM_AT_ONCE) as session:

        async def one_after_another() -> None:
            for asked in waiting:
                seen.append(await _ask(session, url, asked))

        await asyncio.gather(*(one_after_another() for _ in range(NUM_AT_ONCE)))
    return seen


async def _ask(session: aiohttp.ClientSession, url: str, asked: Asked) -> Seen:
    """Ask, and leave as said; a connection that is given up is closed."""
    seen = Seen(asked)
    leave_s = asked.leave_after if asked.leaving == "before" else None
    headers = {"x-tendril-harness": asked.label}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(leave_s):
            async with session.post(url + asked.path, json=asked.body, headers=headers) as response:
                trace_id = response.headers.get("x-tendril-trace-id")
                seen = seen._replace(status=response.status, trace_id=trace_id)
                has_left = asked.leaving == "before"
                num_lines = 0
                while not has_left and await response.content.readline():
                    num_lines += 1
                    has_left = asked.leaving == "during" and num_lines >= asked.leave_after
                seen = seen._replace(ended=not has_left)
                if has_left or asked.leaving == "after":
                    response.close()
    return seen


def _settle(deployment: Deployment) -> int:
    """Wait until nothing runs, and then for what is freed with delay; how many still run."""
    deadline = time.monotonic() + IDLE_S
    while True:
        status = admin(deployment, "status")
        num_inside = int(status["num_running"] + status["num_waiting"])
        if not num_inside or time.monotonic() > deadline:
            time.sleep(SETTLE_S)
            return num_inside
        time.sleep(0.1)


def _memory(gateway: psutil.Process, node: psutil.Process) -> dict[str, int]:
    """Resident bytes of each process; those that the node started count together."""
    of_node = services.rss_bytes(node)
    own = of_node.pop(node.pid)
    memory = {"gateway": services.rss_bytes(gateway)[gateway.pid], "node": own}
    return memory | ({"engine's processes": sum(of_node.values())} if of_node else {})


def kept_of(seen: Iterable[Seen], traces: Sequence[Trace]) -> Kept:
    """Hold what clients saw against the log: each choice that sampled has exactly one trace."""
    count = Counter(trace.trace_id for trace in traces)
    by_label: dict[str | None, set[int]] = {}
    for trace in traces:
        by_label.setdefault(trace.harness_digest, set()).add(trace.choice)
    unkept = untraced = 0
    for one in seen:
        choices = by_label.get(one.asked.label, set())
        expected = set(range(one.asked.body["n"]))
        is_short = one.ended and one.status == 200 and choices != expected
        is_lost = one.trace_id is not None and one.trace_id not in count
        unkept += is_short or is_lost or not choices <= expected
        untraced += not choices
    return Kept(
        doubled=sum(num > 1 for num in count.values()),
        unkept=unkept,
        untraced=untraced,
        empty=sum(not trace.completion_token_ids for trace in traces),
        total=len(count),
    )


def num_failed(seen: Iterable[Seen]) -> int:
    """Answers other than 200, and none at all to a client who waited."""
    return sum(
        one.status != 200 if one.asked.leaving != "before" else one.status not in (None, 200)
        for one in seen
    )


def _memory_figure(name: str, before_bytes: int, after_bytes: int) -> Figure:
    before, after = before_bytes / 2**20, after_bytes / 2**20
    return Figure(
        metric=f"{name}, resident memory", unit="MiB", ours=after, peer=before,
        peer_name="after the warm-up", ratio=after / before,
        target=round(before * MAX_MEMORY_RATIO, 1), ok=after <= before * MAX_MEMORY_RATIO,
    )  # fmt: skip


def _kept_figures(engine: str, kept: Kept) -> list[Figure]:
    return [
        _none(f"{engine}: traces kept twice", "traces", kept.doubled),
        _none(f"{engine}: requests with tokens and without their traces", "requests", kept.unkept),
        Figure(metric=f"{engine}: requests without trace", unit="requests", ours=kept.untraced),
        Figure(metric=f"{engine}: traces without a token", unit="traces", ours=kept.empty),
        Figure(metric=f"{engine}: traces", unit="traces", ours=kept.total),
    ]  # fmt: skip


def _none(metric: str, unit: str, num: int) -> Figure:
    return Figure(metric=metric, unit=unit, ours=num, target=0, ok=num == 0)


def _serve(config: Path, held_file: Path) -> None:
    """The serving process, which says at its end what requests have left behind in it."""
    from serving.process import run as serve
    from tendril.process import stop_on_signals
    from tendril.settings import load_settings

    stop = threading.Event()
    stop_on_signals(stop)

    def report() -> None:
        stop.wait()
        held_file.write_text(json.dumps(_held()))

    threading.Thread(target=report).start()
    serve(load_settings(config), stop)


def _held() -> dict[str, int]:
    """Rows and slots that are taken, in the tables that this process has: no API shows them."""
    held: dict[str, int] = {}
    for thing in gc.get_objects():
        match type(thing).__name__:
            case "SilenceTable":
                held["rows of silence"] = len(thing._values) - thing.num_free
            case "SlotTable":
                held["slots"] = len(thing.active)
    return held


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Path(sys.argv[2]))
