"""What every engine promises about weights: changed between two steps, or refused."""

import asyncio
import threading
from pathlib import Path

import pytest

from serving.engine import SampledToken, SwapRefused
from tendril.weights import TensorBytes, read_weights, weights_digest, write_weights
from tests.serving.engines import Start
from tests.serving.small_model import (
    make_request,
    sample,
    sample_now,
    write_model,
)


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
    # a prompt long enough to be kept: its keys and values must not outlive the weights
    request = make_request(*range(40, 80), max_tokens=30, temperature=0.0)
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
