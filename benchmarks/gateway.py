"""Gateway, recorder and spool on vLLM against vLLM's own server: speed and time to first token.

The same checkpoint, arguments and load on each, in turns: rounds go from one to the next, so that
what else the machine does falls on all of them. On CPUs our weights must stay where they can be
written, which rules out oneDNN's packed copies: so vLLM's own server is measured as it comes, and
with our kernels, which leaves what gateway and recorder cost. GATEWAY_ROUNDS in the environment
(default 2) shortens or lengthens the run; 0 is a smoke run of a few requests.
"""

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np

from benchmarks import services
from benchmarks.figures import Figure
from benchmarks.models import Prompts, write_llama_135m
from benchmarks.streams import clients, closed_loop, completion
from serving.vllm_engine.launch import WORKER_EXTENSION
from tendril.settings import PACKAGED_CHECKPOINT

NUM_STREAMS = (1, 8, 32)
NUM_PROMPT_TOKENS = 48
MIN_SPEED_RATIO, MAX_FIRST_TOKEN_MS, MAX_P99_RATIO = 0.97, 3.0, 1.10
BARE, SAME_KERNELS = "vLLM's server", "vLLM's server, our kernels"
NODE, GATEWAY = "node", "gateway and node"


class Case(NamedTuple):
    """One model, and how many requests a round makes on each server, by streams at once."""

    name: str
    folder: Path
    num_tokens: int
    num_requests: Mapping[int, int]


class Round(NamedTuple):
    """One server under one load."""

    tokens_per_s: float
    first_token_s: Sequence[float]


Rounds = Mapping[str, Sequence[Round]]
"""By server; the same position is the same time."""


def run() -> list[Figure]:
    """Both models; about six minutes on two cores."""
    num_rounds = int(os.environ.get("GATEWAY_ROUNDS", "2"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large = write_llama_135m(folder / "llama")
        cases = [
            Case("135M Llama", large, 32, {1: 2, 8: 8, 32: 32}),
            Case("base model", PACKAGED_CHECKPOINT, 64, {1: 8, 8: 32, 32: 96}),
        ]
        return [
            figure
            for number, case in enumerate(cases)
            for figure in _figures(case, folder / str(number), num_rounds)
        ]


def _figures(case: Case, folder: Path, num_rounds: int) -> list[Figure]:
    deployment = services.write_deployment(
        folder, checkpoint=str(case.folder), engine="vllm", silence_token="", lent_slots=0,
    )  # fmt: skip
    our_kernels = ("--worker-extension-cls", WORKER_EXTENSION)
    with contextlib.ExitStack() as stack:
        urls = {
            BARE: stack.enter_context(services.bare_vllm(deployment, case.folder)),
            SAME_KERNELS: stack.enter_context(
                services.bare_vllm(deployment, case.folder, *our_kernels)
            ),
            NODE: deployment.node_url,
            GATEWAY: deployment.gateway_url,
        }
        stack.enter_context(services.node(deployment))
        stack.enter_context(services.gateway(deployment))
        measured = asyncio.run(_measure(case, urls, num_rounds))
    return [
        figure
        for num_streams, rounds in measured.items()
        for figure in compared(f"{case.name}, {_streams(num_streams)}", rounds)
    ]


async def _measure(case: Case, urls: Mapping[str, str], num_rounds: int) -> dict[int, Rounds]:
    """By streams at once."""
    prompts, measured = Prompts(case.folder), dict[int, Rounds]()
    async with clients(max(NUM_STREAMS)) as session:
        for url in urls.values():  # warm up
            await _round(session, url, prompts, case, 4, 4)
        for num_streams in NUM_STREAMS if num_rounds else NUM_STREAMS[:2]:
            num_requests = case.num_requests[num_streams] if num_rounds else num_streams
            rounds: dict[str, list[Round]] = {name: [] for name in urls}
            for i in range(max(1, num_rounds)):
                for name in list(urls)[:: -1 if i % 2 else 1]:
                    one = await _round(
                        session, urls[name], prompts, case, num_streams, num_requests
                    )
                    rounds[name].append(one)
            measured[num_streams] = rounds
    return measured


async def _round(
    session: aiohttp.ClientSession,
    url: str,
    prompts: Prompts,
    case: Case,
    num_streams: int,
    num_requests: int,
) -> Round:
    texts = prompts.take(num_requests, NUM_PROMPT_TOKENS)
    bodies = [completion(text, case.num_tokens) for text in texts]
    started = time.perf_counter()
    replies = await closed_loop(session, url, bodies, num_streams)
    took_s = time.perf_counter() - started
    num_tokens = sum(reply.num_tokens for reply in replies)
    if num_tokens != num_requests * case.num_tokens:
        raise RuntimeError(f"{url}: {num_tokens} tokens for {num_requests} requests")
    return Round(num_tokens / took_s, [reply.first_token_s for reply in replies])


def compared(load: str, rounds: Rounds) -> list[Figure]:
    """Targets are for the whole, gateway and node; what the parts cost is shown beside it."""
    pairs = ((GATEWAY, BARE, True), (GATEWAY, SAME_KERNELS, True), (NODE, SAME_KERNELS, False))
    return [
        figure
        for name, peer, is_judged in pairs
        for figure in (
            speed(f"{load}: {name}", rounds, name, peer, is_judged=is_judged),
            *first_tokens(f"{load}: {name}, first token", rounds, name, peer, is_judged=is_judged),
        )
    ]


def speed(metric: str, rounds: Rounds, name: str, peer: str, *, is_judged: bool) -> Figure:
    """Tokens a second: the ratio is the median of the rounds' own."""
    ours, theirs = ([one.tokens_per_s for one in rounds[server]] for server in (name, peer))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    limit = MIN_SPEED_RATIO * statistics.median(theirs)
    return Figure(
        metric=metric, unit="tokens/s", ours=statistics.median(ours),
        peer=statistics.median(theirs), peer_name=peer, ratio=ratio,
        target=round(limit, 1) if is_judged else None,
        ok=ratio >= MIN_SPEED_RATIO if is_judged else None,
    )  # fmt: skip


def first_tokens(
    metric: str, rounds: Rounds, name: str, peer: str, *, is_judged: bool
) -> list[Figure]:
    """p50 and p99 over the requests of all rounds."""
    figures = []
    for q in (50, 99):
        ours, theirs = (percentile_ms(rounds[server], q) for server in (name, peer))
        limit = theirs + MAX_FIRST_TOKEN_MS if q == 50 else theirs * MAX_P99_RATIO
        figures.append(
            Figure(
                metric=f"{metric} p{q}", unit="ms", ours=ours, peer=theirs, peer_name=peer,
                ratio=ours / theirs, target=round(limit, 1) if is_judged else None,
                ok=ours <= limit if is_judged else None,
            )
        )  # fmt: skip
    return figures


def percentile_ms(rounds: Sequence[Round], q: float) -> float:
    times_s = [time_s for one in rounds for time_s in one.first_token_s]
    return float(np.percentile(times_s, q)) * 1000


def _streams(num: int) -> str:
    return f"{num} stream{'s' if num > 1 else ''}"
