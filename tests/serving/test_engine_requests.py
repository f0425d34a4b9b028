"""What every engine promises about requests: they wait, leave and fail without harm to others."""

import asyncio
import random

import pytest

from serving.engine import EngineBusy, EngineRequest, SampledToken
from tests.serving.engines import TOLERANCE, Start, gap, wait_idle
from tests.serving.small_model import (
    CONTEXT,
    Reference,
    make_request,
    sample,
    sample_now,
    token_ids,
)


def test_closing_the_iterator_frees_the_slot(start: Start) -> None:
    engine = start(max_running=1)

    async def take_two_and_leave() -> None:
        tokens = engine.generate(make_request(max_tokens=100))
        await anext(tokens)
        await anext(tokens)
        await tokens.aclose()

    asyncio.run(take_two_and_leave())
    wait_idle(engine)
    assert len(sample_now(engine, make_request(max_tokens=3, temperature=0.0))) == 3


def test_a_full_queue_refuses_and_those_who_left_it_make_room(start: Start) -> None:
    engine = start(max_running=1, max_waiting=2)

    async def run() -> None:
        running = engine.generate(make_request(max_tokens=100, temperature=0.0))
        await anext(running)
        waiting = [asyncio.create_task(sample(engine, make_request())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(EngineBusy, match="2 requests wait, limit 2"):
            await sample(engine, make_request())
        waiting[0].cancel()
        await asyncio.sleep(0)
        accepted = asyncio.create_task(sample(engine, make_request()))
        await asyncio.sleep(0)
        assert not accepted.done()
        await running.aclose()
        assert await accepted
        assert await waiting[1]

    asyncio.run(run())
    wait_idle(engine)


def test_more_requests_than_slots_all_finish_and_say_how_long_they_waited(start: Start) -> None:
    engine = start(max_running=2)

    async def run() -> list[list[SampledToken]]:
        requests = [make_request(60 + i, max_tokens=5, temperature=0.0) for i in range(20)]
        return await asyncio.gather(*(sample(engine, request) for request in requests))

    replies = asyncio.run(run())
    waits = [reply[0].queue_s for reply in replies]
    assert all(reply[-1].finish for reply in replies)
    assert all(wait is not None and wait >= 0 for wait in waits)
    assert (waits[-1] or 0.0) > (waits[0] or 0.0)
    assert all(token.queue_s is None for reply in replies for token in reply[1:])


def test_200_requests_with_random_disconnects_leave_no_slot_taken(start: Start) -> None:
    engine = start(max_running=8, max_waiting=200)
    rng = random.Random(1)

    async def leave_after(num_tokens: int) -> None:
        tokens = engine.generate(make_request(max_tokens=10))
        try:
            for _ in range(num_tokens):
                if (await anext(tokens)).finish:
                    return
        finally:
            await tokens.aclose()

    async def run() -> None:
        tasks = [asyncio.create_task(leave_after(rng.randrange(1, 12))) for _ in range(200)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.01)
            rng.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
    wait_idle(engine)
    replies = [sample_now(engine, make_request(max_tokens=2, temperature=0.0)) for _ in range(9)]
    assert all(len(reply) == 2 for reply in replies)


def test_a_client_whose_event_loop_has_gone_does_not_stop_the_engine(start: Start) -> None:
    engine = start()
    loop = asyncio.new_event_loop()
    tokens = engine.generate(make_request(max_tokens=CONTEXT - 3, temperature=0.0))
    loop.run_until_complete(anext(tokens))
    loop.close()
    assert len(sample_now(engine, make_request(max_tokens=4, temperature=0.0))) == 4
    wait_idle(engine)


def test_a_prompt_the_engine_cannot_hold_is_refused_before_it_joins_a_batch(start: Start) -> None:
    engine = start()
    for prompt, max_tokens in (((10**6,), 1), ((-1,), 1), ((), 1), (tuple(range(100)), 29)):
        request = EngineRequest(prompt_token_ids=prompt, max_tokens=max_tokens, temperature=1.0)
        with pytest.raises(ValueError, match="expected"):
            sample_now(engine, request)
    assert engine.stats().num_waiting == 0


def test_online_requests_that_wait_go_before_offline_ones_that_waited_longer(
    start: Start,
) -> None:
    engine = start(max_running=1)
    ended: list[str] = []

    async def named(name: str, request: EngineRequest) -> None:
        await sample(engine, request)
        ended.append(name)

    async def run() -> None:
        first = engine.generate(make_request(max_tokens=60, temperature=0.0))
        await anext(first)
        offline = make_request(max_tokens=3, temperature=0.0, lane="offline")
        tasks = [asyncio.create_task(named("offline", offline)) for _ in range(2)]
        await asyncio.sleep(0)
        online = make_request(max_tokens=3, temperature=0.0)
        tasks += [asyncio.create_task(named("online", online)) for _ in range(2)]
        await asyncio.sleep(0)
        await first.aclose()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert ended == ["online", "online", "offline", "offline"]


def test_an_offline_reply_is_whole_and_honest_whoever_comes_between(
    start: Start, reference: Reference
) -> None:
    engine = start(max_running=1)
    offline = make_request(*range(40, 70), max_tokens=50, seed=4, lane="offline")
    online = make_request(90, 91, max_tokens=5, temperature=0.0)
    alone = sample_now(engine, offline)

    async def run() -> list[list[SampledToken]]:
        task = asyncio.create_task(sample(engine, offline))
        await asyncio.sleep(0.01)
        between = [await sample(engine, online) for _ in range(3)]
        return [await task, *between]

    reply, *between = asyncio.run(run())
    assert token_ids(reply) == token_ids(alone)
    assert reply[-1].finish == alone[-1].finish
    assert gap(reference, offline, reply) < TOLERANCE
    assert all(len(tokens) == 5 for tokens in between)


def test_a_flood_of_offline_requests_turns_no_online_one_away(start: Start) -> None:
    engine = start(max_running=1, max_waiting=3)

    async def run() -> None:
        running = engine.generate(make_request(max_tokens=100, temperature=0.0))
        await anext(running)
        offline = make_request(max_tokens=2, temperature=0.0, lane="offline")
        flood = [asyncio.create_task(sample(engine, offline)) for _ in range(10)]
        await asyncio.sleep(0)
        online = make_request(max_tokens=2, temperature=0.0)
        wanted = [asyncio.create_task(sample(engine, online)) for _ in range(3)]
        await asyncio.sleep(0)
        await running.aclose()
        assert all(len(tokens) == 2 for tokens in await asyncio.gather(*wanted))
        outcomes = await asyncio.gather(*flood, return_exceptions=True)
        assert sum(isinstance(outcome, EngineBusy) for outcome in outcomes) == 7

    asyncio.run(run())
