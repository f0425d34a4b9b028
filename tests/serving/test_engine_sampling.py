"""What every engine promises about tokens: honest log-probs, and the draws that were asked for."""

import asyncio
import math
import random

import pytest

from serving.engine import EngineRequest, SampledToken
from serving.torch_engine.engine import TorchEngine
from tests.serving.engines import TOLERANCE, Start, gap, wait_idle
from tests.serving.small_model import (
    SILENCE,
    Reference,
    make_request,
    sample,
    sample_now,
    token_ids,
)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_equal_a_plain_forward_pass(
    start: Start, reference: Reference, temperature: float
) -> None:
    request = make_request(*range(40, 60), max_tokens=40, temperature=temperature)
    tokens = sample_now(start(), request)
    assert gap(reference, request, tokens) < TOLERANCE


def test_logprobs_are_honest_in_ragged_batches_of_requests_that_come_and_go(
    start: Start, reference: Reference
) -> None:
    engine = start(max_running=4)
    rng = random.Random(3)
    requests = [
        make_request(
            *(rng.randrange(2, 290) for _ in range(rng.randrange(1, 50))),
            max_tokens=rng.randrange(1, 30),
            temperature=rng.choice([0.7, 1.0]),
        )
        for _ in range(20)
    ]

    async def late(request: EngineRequest) -> list[SampledToken]:
        await asyncio.sleep(rng.random() * 0.05)
        return await sample(engine, request)

    async def run() -> list[list[SampledToken]]:
        return await asyncio.gather(*map(late, requests))

    replies = asyncio.run(run())
    gaps = [
        gap(reference, request, reply) for request, reply in zip(requests, replies, strict=True)
    ]
    assert max(gaps) < TOLERANCE
    wait_idle(engine)


def test_greedy_equals_generate_of_transformers(start: Start, reference: Reference) -> None:
    engine = start()
    for prompt in ((70, 71), tuple(range(100, 140))):
        request = make_request(*prompt, temperature=0.0, max_tokens=30)
        assert token_ids(sample_now(engine, request)) == reference.greedy(request)


def test_a_seed_reproduces_whatever_else_runs(start: Start) -> None:
    engine = start()
    request = make_request(seed=5, max_tokens=20)
    alone = sample_now(engine, request)

    async def crowded() -> list[list[SampledToken]]:
        others = [make_request(90, 91, max_tokens=9) for _ in range(5)]
        return await asyncio.gather(*(sample(engine, r) for r in (*others, request)))

    assert token_ids(asyncio.run(crowded())[-1]) == token_ids(alone)
    assert token_ids(sample_now(engine, make_request(seed=6, max_tokens=20))) != token_ids(alone)


def test_the_last_token_says_why_it_is_the_last(start: Start) -> None:
    engine = start()

    async def many() -> list[list[SampledToken]]:
        requests = [make_request(seed=seed, max_tokens=9, temperature=1.5) for seed in range(40)]
        return await asyncio.gather(*(sample(engine, request) for request in requests))

    replies = asyncio.run(many())
    assert {reply[-1].finish for reply in replies} == {"stop", "length"}
    for tokens in replies:
        assert all(token.finish is None for token in tokens[:-1])
        ended = tokens[-1].token_id == 0
        assert tokens[-1].finish == ("stop" if ended else "length")
        assert ended or len(tokens) == 9


def test_silence_is_sampled_as_often_as_the_policy_says_and_only_first(
    start: Start, reference: Reference
) -> None:
    engine = start(max_running=64, max_waiting=2000)
    request = make_request(max_tokens=4, forbid_silence=False, temperature=2.0)

    async def many() -> list[list[SampledToken]]:
        return await asyncio.gather(*(sample(engine, request) for _ in range(600)))

    replies = asyncio.run(many())
    expected = reference.logprobs(request, [SILENCE])[0]
    assert all(r[0].silence_logprob == pytest.approx(expected, abs=TOLERANCE) for r in replies)
    assert all(token.token_id != SILENCE for reply in replies for token in reply[1:])
    silent = [reply for reply in replies if reply[0].token_id == SILENCE]
    assert all(len(reply) == 1 and reply[0].finish == "stop" for reply in silent)
    share, deviation = math.exp(expected), math.sqrt(math.exp(expected) / len(replies))
    assert abs(len(silent) / len(replies) - share) < 4 * deviation


def test_forbidding_silence_changes_the_draw_and_not_the_logprob(
    start: Start, reference: Reference
) -> None:
    engine = start(max_running=32, max_waiting=500)
    request = make_request(max_tokens=1, temperature=2.0)

    async def many() -> list[list[SampledToken]]:
        return await asyncio.gather(*(sample(engine, request) for _ in range(200)))

    unforced = reference.first_logprobs(request)
    for [token] in asyncio.run(many()):
        assert token.token_id != SILENCE
        assert abs(token.logprob - unforced[token.token_id]) < TOLERANCE


def test_top_p_keeps_the_smallest_likely_set(start: Start, reference: Reference) -> None:
    engine = start(max_running=32, max_waiting=500)
    request = make_request(max_tokens=1, top_p=0.3)

    async def many() -> set[int]:
        replies = await asyncio.gather(*(sample(engine, request) for _ in range(100)))
        return {reply[0].token_id for reply in replies}

    probabilities = [math.exp(logprob) for logprob in reference.first_logprobs(request)]
    probabilities[SILENCE] = 0.0
    likely_first = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    mass = 0.0
    nucleus: set[int] = set()
    while mass < 0.3 * sum(probabilities):
        nucleus.add(likely_first[len(nucleus)])
        mass += probabilities[likely_first[len(nucleus) - 1]]
    assert asyncio.run(many()) == nucleus


@pytest.mark.parametrize(("top_k", "min_p"), [(3, 0.0), (0, 0.4)])
def test_top_k_and_min_p_keep_the_likely_and_leave_the_logprobs_honest(
    start: Start, reference: Reference, top_k: int, min_p: float
) -> None:
    engine = start(max_running=32, max_waiting=500)
    request = make_request(max_tokens=1, top_k=top_k, min_p=min_p)

    async def many() -> list[list[SampledToken]]:
        return await asyncio.gather(*(sample(engine, request) for _ in range(200)))

    logprobs = reference.first_logprobs(request)
    ordered = sorted(set(range(len(logprobs))) - {SILENCE}, key=lambda token: -logprobs[token])
    floor = logprobs[ordered[0]] + math.log(min_p or 1e-9)
    likely = {token for token in ordered[: top_k or None] if logprobs[token] >= floor}
    replies = asyncio.run(many())
    assert {reply[0].token_id for reply in replies} == likely
    if isinstance(engine, TorchEngine):  # vLLM's are those after the cut, and untrainable as well
        assert all(abs(r[0].logprob - logprobs[r[0].token_id]) < TOLERANCE for r in replies)


def test_a_stop_token_of_the_request_ends_it_and_is_its_last_token(start: Start) -> None:
    engine = start()
    request = make_request(max_tokens=30, temperature=0.0)
    free = token_ids(sample_now(engine, request))
    stop = free[len(free) // 2]
    stopped = sample_now(
        engine, make_request(max_tokens=30, temperature=0.0, stop_token_ids=(299, stop))
    )
    assert token_ids(stopped) == free[: free.index(stop) + 1]
    assert stopped[-1].finish == "stop"


def test_top_logprobs_are_the_policys_best_first(start: Start, reference: Reference) -> None:
    request = make_request(max_tokens=8, temperature=0.7, num_top_logprobs=5)
    tokens = sample_now(start(), request)
    first = reference.first_logprobs(request)
    best = sorted(range(len(first)), key=lambda token: -first[token])[:5]
    assert [token for token, _ in tokens[0].top_logprobs] == best
    assert tokens[0].top_logprobs[0][1] == pytest.approx(first[best[0]], abs=TOLERANCE)
    for i, token in enumerate(tokens):
        ids, logprobs = zip(*token.top_logprobs, strict=True)
        assert len(set(ids)) == 5
        assert list(logprobs) == sorted(logprobs, reverse=True)
        assert 0 < sum(map(math.exp, logprobs)) <= 1 + TOLERANCE
        assert i == 0 or SILENCE not in ids
        assert dict(token.top_logprobs).get(token.token_id, token.logprob) == token.logprob
    assert all(not t.top_logprobs for t in sample_now(start(), make_request()))


def test_what_an_engine_already_knows_of_a_prompt_does_not_show(start: Start) -> None:
    shared = [2 + 7 * i % 290 for i in range(60)]
    requests = [make_request(*shared[: 60 - i], 250 + i, seed=i, max_tokens=20) for i in range(6)]
    warm, cold = start(), [start() for _ in requests]
    sample_now(warm, make_request(*shared, max_tokens=40))

    async def all_at_once() -> list[list[SampledToken]]:
        return await asyncio.gather(*(sample(warm, r) for r in (*requests, *requests)))

    fresh = [sample_now(engine, request) for engine, request in zip(cold, requests, strict=True)]
    for got, expected in zip(asyncio.run(all_at_once()), (*fresh, *fresh), strict=True):
        assert token_ids(got) == token_ids(expected)
        assert [t.logprob for t in got] == pytest.approx([t.logprob for t in expected], abs=1e-5)
