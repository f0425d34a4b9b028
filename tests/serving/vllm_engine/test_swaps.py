"""Many weight changes under load: no request notices, and no number of older weights is left."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from serving.engine import Engine, SampledToken
from tendril.records import Trace
from tests.serving.live_server import LiveServer
from tests.serving.small_model import make_request, sample, sample_now
from tests.serving.vllm_engine.shared import Borrowed, SharedVllm
from tests.serving.vllm_engine.test_server import TOLERANCE, Asked, ask_all, rescored_gap

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]
NUM_SWAPS = 30
LONG = "def return self import for while value names the a in é " * 6


def restored(server: LiveServer, checkpoint: Path) -> None:
    change(server, 1, checkpoint)


def change(server: LiveServer, version: int, folder: Path) -> None:
    for step in ("stage", "swap"):
        body = {"policy_version": version, "folder": str(folder)}
        reply = server.admin.post(f"/admin/{step}", json=body)
        assert reply.status_code == 200, reply.text


def probed(server: LiveServer) -> list[tuple[int, float]]:
    """Greedy tokens and log-probs; the first, which exploration may force, left out."""
    reply = server.complete(prompt=list(range(40, 80)), logprobs=0, return_token_ids=True)
    [choice] = reply.json()["choices"]
    found = zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True)
    return list(found)[1:]


def expected(engine: Engine) -> list[tuple[int, float]]:
    request = make_request(*range(40, 80), max_tokens=12, temperature=0.0)
    return [(t.token_id, t.logprob) for t in sample_now(engine, request)][1:]


def busy_requests(count: int) -> list[Asked]:
    rng = random.Random(1)
    return [
        Asked(
            "/v1/completions",
            {
                "model": "tendril",
                "prompt": LONG[: rng.choice([20, 150, 300])],
                "max_tokens": rng.choice([5, 40, 80]),
                "n": rng.choice([1, 1, 4]),
                "stream": rng.random() < 0.5,
                "return_token_ids": True,
                "logprobs": 1,
                "ignore_eos": True,
            },
        )
        for _ in range(count)
    ]


def test_thirty_changes_under_load(vllm_server: LiveServer, checkpoints: list[Path]) -> None:
    """Every trace of one version is re-scored under exactly that version's weights."""
    before = vllm_server.settled()
    fresh = [expected(Borrowed(folder)) for folder in checkpoints]
    requests = busy_requests(300)

    async def run() -> None:
        load = asyncio.create_task(ask_all(vllm_server, requests))
        for number in range(NUM_SWAPS):
            version = 2 + number
            await asyncio.to_thread(change, vllm_server, version, folder_of(version))
            await asyncio.sleep(0.05)
        await load

    def folder_of(version: int) -> Path:
        return checkpoints[(version + 1) % 2]

    asyncio.run(run())
    for version in (101, 102):
        change(vllm_server, version, folder_of(version))
        assert probed(vllm_server) == fresh[(version + 1) % 2]
    restored(vllm_server, checkpoints[0])
    vllm_server.trace(vllm_server.complete().headers["x-tendril-trace-id"])
    traces = {t.trace_id: t for t in vllm_server.records(Trace) if t.trace_id not in before}
    for asked in requests:
        for choice, ids in asked.token_ids.items():
            trace = traces[f"{asked.trace_id}.{choice}" if choice else str(asked.trace_id)]
            assert list(trace.completion_token_ids) == ids
            assert trace.finish_reason in ("length", "stop"), trace.finish_reason
            versions = [span.policy_version for span in trace.policy_spans]
            assert versions == sorted(set(versions))
        assert len(asked.token_ids) == asked.body["n"]
    check_scores([t for t in traces.values() if t.untrainable is None], folder_of)


def check_scores(traces: Sequence[Trace], folder_of: Any) -> None:
    whole = [t for t in traces if len(t.policy_spans) == 1]
    seen = Counter(t.policy_spans[0].policy_version for t in whole)
    assert len(seen) > 10, seen
    assert len(traces) > len(whole)
    for even in (0, 1):
        mine = [t for t in whole if t.policy_spans[0].policy_version % 2 == even]
        assert rescored_gap(folder_of(even), mine) < TOLERANCE


def test_requests_that_wait_or_are_half_computed_get_the_new_weights_alone(
    faulty_engine: SharedVllm, checkpoints: list[Path]
) -> None:
    """All of them share a prefix that the old weights have computed already."""
    fresh = Borrowed(checkpoints[1])
    faulty_engine.reset()
    prompts = [(*range(40, 130), 200 + i) for i in range(80)]
    requests = [make_request(*prompt, max_tokens=16, temperature=0.0) for prompt in prompts]
    reference = [shown(sample_now(fresh, request)) for request in requests[:20]]
    engine = faulty_engine.engine
    engine.stage(2, checkpoints[1])

    async def run() -> list[list[SampledToken]]:
        asking = [asyncio.create_task(sample(faulty_engine, r)) for r in requests]  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(engine.swap, 2)
        return await asyncio.gather(*asking)

    replies = asyncio.run(run())
    new = [i for i, reply in enumerate(replies) if reply[0].policy_version == 2]
    assert len(new) > 10
    assert all(len(reply) == 16 or reply[-1].finish == "stop" for reply in replies)
    for i in set(new) & set(range(20)):
        assert [t for t, _ in shown(replies[i])] == [t for t, _ in reference[i]]
        assert [p for _, p in shown(replies[i])] == pytest.approx(
            [p for _, p in reference[i]], abs=1e-4
        )
    again = sample_now(faulty_engine, requests[0])  # type: ignore[arg-type]
    assert shown(again) == reference[0]


def shown(tokens: list[SampledToken]) -> list[tuple[int, float]]:
    return [(token.token_id, token.logprob) for token in tokens]


def test_a_choice_that_began_late_beside_its_siblings_is_marked(
    vllm_server: LiveServer, checkpoints: list[Path]
) -> None:
    """Its prompt was computed by the old weights, its tokens by the new: no one can re-score it."""
    body = {"model": "tendril", "prompt": LONG, "n": 64, "max_tokens": 60, "stream": True,
            "ignore_eos": True, "return_token_ids": True}  # fmt: skip
    asked = Asked("/v1/completions", body)

    async def run() -> None:
        asking = asyncio.create_task(ask_all(vllm_server, [asked]))
        while not asked.token_ids:
            await asyncio.sleep(0.005)
        await asyncio.to_thread(change, vllm_server, 2, checkpoints[1])
        await asking

    asyncio.run(run())
    restored(vllm_server, checkpoints[0])
    ids = [f"{asked.trace_id}.{i}" if i else str(asked.trace_id) for i in range(64)]
    vllm_server.trace(ids[-1])
    traces = {t.trace_id: t for t in vllm_server.records(Trace)}
    mine = [traces[i] for i in ids]
    assert [list(t.completion_token_ids) for t in mine] == [asked.token_ids[i] for i in range(64)]
    late = [t for t in mine if t.policy_spans[0].policy_version == 2]
    assert late
    assert {t.untrainable for t in late} == {"stale_prompt"}
    early = list(itertools.filterfalse(late.__contains__, mine))
    assert {t.untrainable for t in early} == {None}
