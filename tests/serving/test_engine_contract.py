"""What every engine promises: honest log-probs, no lost slot, weights changed between two steps.

Another engine joins by another entry in `ENGINES`.
"""

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.engine import Engine, EngineBusy, EngineRequest, SampledToken, SwapRefused
from tendril.weights import TensorBytes, read_weights, weights_digest, write_weights
from tests.serving.small_model import (
    CONTEXT,
    SILENCE,
    Reference,
    make_engine,
    make_request,
    sample,
    sample_now,
    token_ids,
    write_model,
)

ENGINES: dict[str, Callable[..., Engine]] = {"torch": make_engine}
Start = Callable[..., Engine]
TOLERANCE = 1e-4


@pytest.fixture(params=ENGINES)
def start(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[Start]:
    started: list[Engine] = []

    def start_one(folder: Path = checkpoint, **overrides: Any) -> Engine:
        started.append(ENGINES[request.param](folder, **overrides))
        return started[-1]

    yield start_one
    for engine in started:
        engine.close()


def gap(reference: Reference, request: EngineRequest, tokens: list[SampledToken]) -> float:
    expected = reference.logprobs(request, token_ids(tokens))
    return max(abs(t.logprob - e) for t, e in zip(tokens, expected, strict=True))


def wait_idle(engine: Engine, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while engine.stats().num_running or engine.stats().num_waiting:
        assert time.monotonic() < deadline, f"still busy: {engine.stats()}"
        time.sleep(0.005)


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


def test_closing_the_iterator_frees_the_slot(start: Start) -> None:
    engine = start(max_running=1)

    async def take_two_and_leave() -> None:
        tokens = engine.generate(make_request(max_tokens=100))
        await anext(tokens)
        await anext(tokens)
        await tokens.aclose()  # type: ignore[attr-defined]

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
        await running.aclose()  # type: ignore[attr-defined]
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
            await tokens.aclose()  # type: ignore[attr-defined]

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


def test_a_failed_step_fails_its_requests_and_not_the_engine(start: Start) -> None:
    engine = start()
    with pytest.raises(ValueError, match="too many dimensions"):
        sample_now(engine, make_request(temperature="hot"))
    wait_idle(engine)
    assert len(sample_now(engine, make_request(max_tokens=3, temperature=0.0))) == 3


def test_a_swap_under_traffic_keeps_requests_and_labels_tokens(
    start: Start, checkpoints: list[Path]
) -> None:
    engine = start(checkpoints[0])
    digest = weights_digest(read_weights(checkpoints[1] / "model.safetensors"))

    async def run() -> list[list[SampledToken]]:
        running = [
            asyncio.create_task(
                sample(engine, make_request(50 + i, max_tokens=100, temperature=0.0))
            )
            for i in range(4)
        ]
        await asyncio.sleep(0.02)
        assert await asyncio.to_thread(engine.stage, 2, checkpoints[1]) == digest
        result = await asyncio.to_thread(engine.swap, 2)
        assert (result.policy_version, result.weights_digest) == (2, digest)
        assert 0 < result.pause_ms < 1000
        return await asyncio.gather(*running)

    for reply in asyncio.run(run()):
        versions = [token.policy_version for token in reply]
        assert versions == sorted(versions)
        assert set(versions) <= {1, 2}
        assert reply[-1].finish
    assert engine.stats()[:2] == (2, digest)


def test_after_a_swap_the_engine_equals_a_fresh_one_there_and_back(
    start: Start, checkpoints: list[Path]
) -> None:
    engine, fresh = start(checkpoints[0]), start(checkpoints[1])
    request = make_request(max_tokens=30, temperature=0.0)
    before = sample_now(engine, request)
    engine.stage(2, checkpoints[1])
    engine.swap(2)
    swapped, expected = sample_now(engine, request), sample_now(fresh, request)
    assert [t[:2] for t in swapped] == [t[:2] for t in expected]
    assert [t[:2] for t in swapped] != [t[:2] for t in before]
    engine.stage(3, checkpoints[0])
    engine.swap(3)
    assert [t[:2] for t in sample_now(engine, request)] == [t[:2] for t in before]


def test_the_digest_read_back_is_that_of_the_file(start: Start, checkpoint: Path) -> None:
    engine = start()
    digest = weights_digest(read_weights(checkpoint / "model.safetensors"))
    assert engine.stats().weights_digest == digest
    assert engine.stage(2, checkpoint) == digest
    assert engine.swap(2).weights_digest == digest


def bad_folders(folder: Path, checkpoint: Path) -> dict[str, Path]:
    """Folders that are no version of `checkpoint`."""
    stored = read_weights(checkpoint / "model.safetensors")
    name, tensor = next(iter(stored.items()))
    nan = TensorBytes(tensor.dtype, tensor.shape, b"\xff\x7f" * (len(tensor.data) // 2))
    whole_numbers = TensorBytes("I16", tensor.shape, tensor.data)
    lacking = {key: value for key, value in stored.items() if key != name}
    for case in ("torn", "garbage", "nan", "dtype", "lacking", "empty"):
        (folder / case).mkdir()
    whole = (checkpoint / "model.safetensors").read_bytes()
    (folder / "torn" / "model.safetensors").write_bytes(whole[:-100])
    (folder / "garbage" / "model.safetensors").write_bytes(b"\xffno weights at all" * 50)
    write_weights(folder / "nan" / "model.safetensors", {**stored, name: nan})
    write_weights(folder / "dtype" / "model.safetensors", {**stored, name: whole_numbers})
    write_weights(folder / "lacking" / "model.safetensors", lacking)
    write_model(folder / "shape", seed=1, hidden_size=64)
    return {path.name: path for path in folder.iterdir()} | {"absent": folder / "absent"}


def test_weights_that_do_not_fit_are_refused_and_serving_goes_on(
    start: Start, checkpoint: Path, tmp_path: Path
) -> None:
    engine = start()
    request = make_request(max_tokens=5, temperature=0.0)
    before = sample_now(engine, request)
    for case, folder in bad_folders(tmp_path, checkpoint).items():
        with pytest.raises(SwapRefused, match=str(folder)):
            engine.stage(2, folder)
        with pytest.raises(SwapRefused, match="expected version 2 staged, got none"):
            engine.swap(2)
        assert [t[:3] for t in sample_now(engine, request)] == [t[:3] for t in before], case


def test_only_the_staged_version_can_be_swapped_in(start: Start, checkpoint: Path) -> None:
    engine = start()
    engine.stage(3, checkpoint)
    with pytest.raises(SwapRefused, match="expected version 2 staged, got 3"):
        engine.swap(2)
    assert engine.swap(3).policy_version == 3
    with pytest.raises(SwapRefused, match="got none"):
        engine.swap(3)


def test_concurrent_swaps_of_one_version_happen_once(start: Start, checkpoint: Path) -> None:
    engine = start()
    engine.stage(2, checkpoint)
    outcomes: list[str] = []

    def swap() -> None:
        try:
            outcomes.append(str(engine.swap(2).policy_version))
        except SwapRefused:
            outcomes.append("refused")

    threads = [threading.Thread(target=swap) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["2", "refused", "refused", "refused"]
