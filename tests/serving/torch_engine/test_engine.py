"""What only the torch engine does: prefixes shared, offline requests set back, no leak."""

import asyncio
import gc
import random
from pathlib import Path

import pytest

from serving.engine import SampledToken
from serving.torch_engine.running import Running
from tests.serving.engines import TOLERANCE, gap, wait_idle
from tests.serving.small_model import (
    Reference,
    make_engine,
    make_request,
    sample,
    sample_now,
    token_ids,
)

LONG = tuple(range(40, 80))


def test_a_failed_step_fails_its_requests_and_not_the_engine(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    with pytest.raises(ValueError, match="too many dimensions"):
        sample_now(engine, make_request(*LONG, temperature="hot"))
    wait_idle(engine)
    assert len(sample_now(engine, make_request(*LONG, max_tokens=3, temperature=0.0))) == 3
    engine.close()


def test_an_online_request_sets_an_offline_one_back_which_then_goes_on_exactly(
    checkpoint: Path, reference: Reference
) -> None:
    engine = make_engine(checkpoint, max_running=1)
    offline = make_request(*LONG, max_tokens=70, seed=9, lane="offline")
    online = make_request(max_tokens=10, temperature=0.0)
    alone = sample_now(engine, offline)
    assert len(alone) > 20

    async def run() -> tuple[list[SampledToken], int]:
        reply: list[SampledToken] = []

        async def collect() -> None:
            async for token in engine.generate(offline):
                reply.append(token)  # noqa: PERF401 (read while it grows)

        task = asyncio.create_task(collect())
        while len(reply) < 3:
            await asyncio.sleep(0)
        assert len(await sample(engine, online)) == 10
        num_before = len(reply)
        await task
        return reply, num_before

    reply, num_before = asyncio.run(run())
    assert num_before < len(alone)  # the online one did not wait for its end
    assert token_ids(reply) == token_ids(alone)
    assert gap(reference, offline, reply) < TOLERANCE
    assert sum(token.queue_s is not None for token in reply) == 1
    engine.close()


def test_an_offline_request_set_back_over_a_swap_keeps_its_tokens_and_their_versions(
    checkpoints: list[Path],
) -> None:
    engine = make_engine(checkpoints[0], max_running=1)
    references = {1: Reference(checkpoints[0]), 2: Reference(checkpoints[1])}
    request = make_request(*LONG, max_tokens=60, seed=9, lane="offline", stop_token_ids=())

    async def run() -> list[SampledToken]:
        task = asyncio.create_task(sample(engine, request))
        online = engine.generate(make_request(max_tokens=100, temperature=0.0))
        await asyncio.sleep(0.02)
        await anext(online)
        engine.stage(2, checkpoints[1])
        await asyncio.to_thread(engine.swap, 2)
        await online.aclose()
        return await task

    reply = asyncio.run(run())
    versions = [token.policy_version for token in reply]
    assert versions == sorted(versions)
    for version, plain in references.items():  # recomputed, so honest under each version
        expected = plain.logprobs(request, token_ids(reply))
        for token, logprob in zip(reply, expected, strict=True):
            assert token.policy_version != version or abs(token.logprob - logprob) < TOLERANCE
    engine.close()


def test_samples_of_one_prompt_share_one_prefill(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    request = make_request(*LONG, max_tokens=60, temperature=0.0)

    async def run() -> list[list[SampledToken]]:
        return await asyncio.gather(*(sample(engine, request) for _ in range(8)))

    replies = asyncio.run(run())
    assert len({tuple(token_ids(reply)) for reply in replies}) == 1
    assert engine.stats().num_reused_tokens == 7 * (len(LONG) - 1)
    engine.close()


@pytest.mark.slow
def test_thousands_of_cancels_leave_no_slot_taken_and_no_request_alive(checkpoint: Path) -> None:
    engine = make_engine(checkpoint, max_waiting=3_000)
    rng = random.Random(2)

    async def one(i: int) -> None:
        lane = rng.choice(["online", "offline"])
        request = make_request(*LONG[: rng.randrange(1, 40)], max_tokens=6, lane=lane)
        await asyncio.wait_for(sample(engine, request), timeout=rng.choice([0.0, 0.01, 0.3, 9.0]))

    async def run() -> int:
        outcomes = await asyncio.gather(*map(one, range(3_000)), return_exceptions=True)
        return sum(isinstance(outcome, TimeoutError) for outcome in outcomes)

    assert 500 < asyncio.run(run()) < 3_000
    wait_idle(engine)
    gc.collect()
    num_alive = sum(type(thing) is Running for thing in gc.get_objects())
    assert num_alive <= 2  # the last ones, in frames of the engine
    assert not engine._table.active
    assert len(engine._lanes) == 0
    engine.close()


def test_a_closed_engine_answers_those_who_wait_and_takes_no_more(checkpoint: Path) -> None:
    engine = make_engine(checkpoint, max_running=1)

    async def run() -> list[BaseException | list[SampledToken]]:
        tasks = [
            asyncio.create_task(sample(engine, make_request(max_tokens=120, temperature=0.0)))
            for _ in range(3)
        ]
        await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.close)
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(run())
    assert sum(isinstance(outcome, RuntimeError) for outcome in outcomes) >= 2
    with pytest.raises(RuntimeError, match="closed"):
        sample_now(engine, make_request())
