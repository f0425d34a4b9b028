"""A weight change that fails at any stage: the old version serves on, un-paused, bit for bit."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.engine import EngineRequest, SampledToken, SwapRefused
from serving.vllm_engine.patch import write_patch
from tendril.weights import read_weights, weights_digest
from tests.serving.small_model import make_request, sample
from tests.serving.vllm_engine.shared import SharedVllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]
WEIGHT = "model.layers.0.mlp.down_proj.weight"
EMBEDDINGS, HIDDEN_SIZE = "model.embed_tokens.weight", 32
PROMPT = make_request(*range(40, 80), max_tokens=20, temperature=0.0)


class Faulty:
    """A running engine that can be told to fail."""

    def __init__(self, shared: SharedVllm, second: Path) -> None:
        self.shared, self.engine, self.second = shared, shared.engine, second
        self.before = self.reply()

    def call(self, name: str, *args: Any) -> Any:
        """Of the worker, at once."""
        (result,) = self.shared.run(self.engine.llm.collective_rpc(name, args=args))
        return result

    def reply(self, request: EngineRequest = PROMPT) -> list[SampledToken]:
        return asyncio.run(sample(self.shared, request))  # type: ignore[arg-type]

    def within(self, **seconds: float) -> None:
        weights = self.engine.weights
        weights.timeouts = weights.timeouts._replace(**seconds)

    def refuses(self, words: str) -> None:
        """The staged version 2 is refused, and the old one serves on as if nothing had been."""
        with pytest.raises(SwapRefused, match=words):
            self.engine.swap(2)
        self.still_serves()

    def still_serves(self) -> None:
        self.engine.check()
        assert not self.shared.run(self.engine.llm.is_paused())
        assert self.engine.weights.is_open.is_set()
        assert shown(self.reply()) == shown(self.before)
        assert self.engine.stats().policy_version == 1
        assert self.engine.stats().weights_digest == digest_of(self.shared.folder)
        assert self.reply()[-1].policy_version == 1

    def takes_the_next_one(self) -> None:
        self.engine.stage(2, self.second)
        assert self.engine.swap(2).weights_digest == digest_of(self.second)
        assert shown(self.reply()) != shown(self.before)


def shown(tokens: list[SampledToken]) -> list[tuple[int, float]]:
    return [(token.token_id, token.logprob) for token in tokens]


def digest_of(folder: Path) -> str:
    return weights_digest(read_weights(folder / "model.safetensors"))


@pytest.fixture
def faulty(faulty_engine: SharedVllm, checkpoints: list[Path]) -> Iterator[Faulty]:
    shared = faulty_engine
    shared.reset()
    timeouts = shared.engine.weights.timeouts
    yield Faulty(shared, checkpoints[1])
    shared.engine.weights.timeouts = timeouts


def test_a_scatter_that_fails_half_way_is_undone(faulty: Faulty) -> None:
    faulty.engine.stage(2, faulty.second)
    assert faulty.call("fault_in_scatter") > 2
    faulty.refuses("applying version 2: .*a bad change")
    faulty.takes_the_next_one()


def test_without_a_base_to_compare_with_a_failed_scatter_is_undone_too(
    faulty: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faulty.engine.weights, "_folder", tmp_path)
    faulty.engine.stage(2, faulty.second)
    faulty.call("fault_in_scatter")
    faulty.refuses("a bad change")


def test_a_patch_against_other_weights_is_not_staged(faulty: Faulty) -> None:
    faulty.call("fault_flip", WEIGHT, 3)
    with pytest.raises(SwapRefused, match=f"{WEIGHT}: holds other weights"):
        faulty.engine.stage(2, faulty.second)
    with pytest.raises(SwapRefused, match="got none"):
        faulty.engine.swap(2)
    faulty.call("fault_flip", WEIGHT, 3)
    faulty.still_serves()


@pytest.mark.parametrize("damage", ["torn", "absent"])
def test_a_damaged_patch_file_is_not_staged(faulty: Faulty, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.patch"
    write_patch(path, faulty.shared.folder, faulty.second)
    whole = path.read_bytes()
    path.unlink() if damage == "absent" else path.write_bytes(whole[: len(whole) // 2])
    job = faulty.engine.weights._job("tendril_stage", str(path))
    with pytest.raises(SwapRefused, match=f"tendril_stage of {path}"):
        faulty.shared.run(job)
    faulty.still_serves()


def test_a_worker_that_hangs_while_staging_is_given_up(faulty: Faulty) -> None:
    faulty.within(job_s=0.3)
    faulty.call("fault_slow_job", 1.0)
    started = time.monotonic()
    with pytest.raises(SwapRefused, match=r"tendril_stage: no answer in 0\.3 s"):
        faulty.engine.stage(2, faulty.second)
    assert time.monotonic() - started < 1.0
    faulty.within(job_s=60)
    faulty.still_serves()
    faulty.engine.stage(3, faulty.second)
    time.sleep(1.2)  # the job that was given up ends now: it must not take the other's place
    assert faulty.engine.swap(3).policy_version == 3


def test_weights_that_arrive_damaged_are_taken_back(faulty: Faulty, tmp_path: Path) -> None:
    """The checkpoint on disk is not what was staged: the live weights must equal neither half."""
    third = tmp_path / "third"
    third.mkdir()
    target = third / "model.safetensors"
    target.write_bytes((faulty.second / "model.safetensors").read_bytes())
    faulty.engine.stage(2, third)
    target.write_bytes((faulty.shared.folder / "model.safetensors").read_bytes())
    faulty.refuses("version 2 arrived damaged: .*differs from")
    target.write_bytes((faulty.second / "model.safetensors").read_bytes())
    faulty.takes_the_next_one()


def test_a_version_that_was_taken_back_leaves_no_stale_prefix(faulty: Faulty) -> None:
    """Blocks computed by version 2 as it arrived damaged are not those of version 2 mended."""
    faulty.takes_the_next_one()
    expected = shown(faulty.reply())
    faulty.shared.reset()
    faulty.engine.stage(2, faulty.second)
    swapping = threading.Thread(target=lambda: refused(faulty))
    faulty.call("fault_slow_job", 1.0)  # the comparison: time enough to fill the cache
    swapping.start()
    wait_for(lambda: faulty.engine.weights.policy_version == 2)
    # Input embeddings are used as they are; a linear weight's packed copy would not be damaged.
    first = PROMPT.prompt_token_ids[0]
    faulty.call("fault_flip", EMBEDDINGS, first * HIDDEN_SIZE)
    damaged = shown(faulty.reply())
    swapping.join()
    assert damaged != expected
    assert faulty.engine.weights.lost is None
    faulty.still_serves()
    faulty.takes_the_next_one()
    assert shown(faulty.reply()) == expected


def refused(faulty: Faulty) -> None:
    with pytest.raises(SwapRefused, match="arrived damaged"):
        faulty.engine.swap(2)


def wait_for(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_pause_that_comes_too_late_is_given_up(faulty: Faulty) -> None:
    faulty.engine.stage(2, faulty.second)
    faulty.within(pause_s=0.3)
    busy = faulty.engine.llm.collective_rpc("fault_busy", args=(0.5,))
    asyncio.run_coroutine_threadsafe(busy, faulty.shared._loop)
    time.sleep(0.05)
    faulty.refuses(r"pausing: no answer in 0\.3 s")
    faulty.within(pause_s=30)
    faulty.takes_the_next_one()


def test_a_scatter_that_takes_too_long_is_undone_when_it_ends(faulty: Faulty) -> None:
    faulty.engine.stage(2, faulty.second)
    faulty.within(apply_s=0.6)
    original = faulty.engine.llm.pause_generation

    async def pause(**options: Any) -> None:
        await original(**options)
        busy = faulty.engine.llm.collective_rpc("fault_busy", args=(0.9,))
        asyncio.ensure_future(busy)  # noqa: RUF006  ends by itself
        await asyncio.sleep(0.05)

    faulty.engine.llm.pause_generation = pause
    try:
        faulty.refuses(r"applying version 2: scattering: no answer in 0\.6 s")
    finally:
        faulty.engine.llm.pause_generation = original
    faulty.within(apply_s=60)
    faulty.takes_the_next_one()


def test_after_a_good_change_nothing_is_kept_of_the_old_weights(faulty: Faulty) -> None:
    faulty.takes_the_next_one()
    assert faulty.call("fault_held") == 0


def test_staging_while_requests_run_changes_nothing_for_them(faulty: Faulty) -> None:
    request = make_request(*range(40, 60), max_tokens=100, temperature=0.0)
    expected = shown(faulty.reply(request))

    async def run() -> list[list[SampledToken]]:
        asking = [asyncio.create_task(sample(faulty.shared, request)) for _ in range(8)]  # type: ignore[arg-type]
        for version in (2, 3, 4):
            await asyncio.to_thread(faulty.engine.stage, version, faulty.second)
        return await asyncio.gather(*asking)

    for reply in asyncio.run(run()):
        assert [token.token_id for token in reply] == [token for token, _ in expected]
        assert {token.policy_version for token in reply} == {1}


def test_an_engine_that_holds_neither_version_ends_its_process(faulty: Faulty) -> None:
    """An element outside the patch is damaged: there is nothing to take back that would help."""
    faulty.engine.stage(2, faulty.shared.folder)  # an empty patch
    faulty.call("fault_flip", WEIGHT, 0)
    from serving.vllm_engine.weights import EngineLost

    with pytest.raises(EngineLost, match=r"version 1 cannot go on serving: .*differs from"):
        faulty.engine.swap(2)
    with pytest.raises(EngineLost, match="cannot go on serving"):
        faulty.engine.check()
    faulty.call("fault_flip", WEIGHT, 0)
    faulty.engine.weights.lost = None
    faulty.still_serves()
