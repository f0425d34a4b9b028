"""Weight deltas: size against the entropy bound and peers, and speed, at several densities.

Pairs are normal bf16 weights of Llama shapes before and after real AdamW steps on noisy gradients,
with masters in fp32. DELTA_PAIR=BASE:TARGET in the environment, two checkpoint folders, adds a
real pair. "ratio" is full bytes over delta bytes; speeds are model bytes per CPU second, one core.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.figures import Figure
from shipper.delta import decode_delta, encode_delta
from shipper.lattice import FORMATS, steps_between
from tendril.weights import TensorBytes, read_weights

T = TypeVar("T")
Tensors = Mapping[str, TensorBytes]
SHAPES: Mapping[str, tuple[int, ...]] = {"embed": (4096, 256)} | {
    f"layers.{layer}.{name}": shape
    for layer in range(4)
    for name, shape in {
        "q": (256, 256), "k": (256, 256), "v": (256, 256), "o": (256, 256),
        "gate": (688, 256), "up": (688, 256), "down": (256, 688), "norm": (256,),
    }.items()
}  # fmt: skip
WARM_UP_STEPS = 16  # after which Adam's updates have settled and masters fill their rounding cells


class Case(NamedTuple):
    """One pair and what its delta has to reach."""

    learning_rate: float
    num_steps: int
    min_ratio: float | None
    max_over_bound: float | None


CASES = (
    Case(3.3e-7, 1, min_ratio=150, max_over_bound=None),  # near 0.46 % of elements change
    Case(7.3e-7, 6, min_ratio=None, max_over_bound=1.13),  # near 3.6 %
    Case(1e-5, 20, min_ratio=None, max_over_bound=1.05),  # near 45 %
    Case(1.75e-5, 20, min_ratio=None, max_over_bound=1.05),  # near 60 %
)


def run() -> list[Figure]:
    """All figures; under a minute on one core."""
    torch.set_num_threads(1)
    figures: list[Figure] = []
    for case in CASES:
        figures += _figures(*_train(case), case)
    if pair := os.environ.get("DELTA_PAIR"):
        base, target = (read_weights(Path(p) / "model.safetensors") for p in pair.split(os.pathsep))
        figures += _figures(base, target, Case(0, 0, None, 1.05), "real pair, ")
    return figures


def _train(case: Case) -> tuple[Tensors, Tensors]:
    generator = torch.Generator().manual_seed(0)
    masters = {
        name: torch.randn(shape, generator=generator) * 0.02
        if len(shape) > 1
        else torch.ones(shape)
        for name, shape in SHAPES.items()
    }
    optimizer = torch.optim.AdamW(
        masters.values(), lr=case.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    pair = []
    for num_steps in (WARM_UP_STEPS, case.num_steps):
        for _ in range(num_steps):
            for master in masters.values():
                master.grad = torch.randn(master.shape, generator=generator)
            optimizer.step()
        pair.append({name: _bf16(master) for name, master in masters.items()})
    return pair[0], pair[1]


def _bf16(master: Tensor) -> TensorBytes:
    bits = master.detach().to(torch.bfloat16).view(torch.int16).numpy()
    return TensorBytes("BF16", tuple(master.shape), bits.tobytes())


def _figures(base: Tensors, target: Tensors, case: Case, label: str = "") -> list[Figure]:
    delta, encode_s = _timed(lambda: encode_delta(base, target))
    decoded, decode_s = _timed(lambda: decode_delta(base, delta))
    if decoded != target:
        raise AssertionError("the delta did not give back the target")
    old, new = _joined(base), _joined(target)
    xor, xor_s = _timed(lambda: _xor_zstd(old, new))
    patch = _zstd_patch(old, new)
    density, bound_bytes = density_and_bound(old, new)
    at = f"{label}{density:.2%} changed"
    full, size = float(new.nbytes), len(delta)
    over = case.max_over_bound
    return [
        Figure(
            metric=f"delta ratio, {at}", unit="x", ours=full / size,
            peer=full / len(xor), peer_name="XOR + zstd -1", ratio=len(xor) / size,
            target=case.min_ratio,
            ok=None if case.min_ratio is None else full / size >= case.min_ratio,
        ),
        Figure(
            metric=f"delta ratio, {at}", unit="x", ours=full / size,
            peer=full / len(patch), peer_name="zstd, base as dictionary",
            ratio=len(patch) / size,
        ),
        Figure(
            metric=f"delta bytes, {at}", unit="bytes", ours=size, peer=round(bound_bytes),
            peer_name="entropy given the base's exponent", ratio=size / bound_bytes,
            target=None if over is None else round(over * bound_bytes),
            ok=None if over is None else size <= over * bound_bytes,
        ),
        Figure(
            metric=f"encode, {at}", unit="MB/s", ours=full / encode_s / 1e6,
            peer=full / xor_s / 1e6, peer_name="XOR + zstd -1", ratio=xor_s / encode_s,
        ),
        Figure(metric=f"decode and verify, {at}", unit="MB/s", ours=full / decode_s / 1e6),
    ]  # fmt: skip


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """Its result and CPU seconds: other jobs on the machine do not count."""
    start = time.process_time()
    result = work()
    return result, max(time.process_time() - start, 1e-6)


def _joined(tensors: Tensors) -> NDArray[np.uint16]:
    """All elements as bf16 bit patterns, by name."""
    return np.frombuffer(b"".join(tensors[name].data for name in sorted(tensors)), np.uint16)


def density_and_bound(
    base_N: NDArray[np.uint16],
    target_N: NDArray[np.uint16],
) -> tuple[float, float]:
    """Share of bf16 elements that changed; bytes of the steps' empirical entropy by exponent."""
    folded_N = steps_between(base_N, target_N, FORMATS["BF16"])
    exponent_N = base_N >> 7 & 0xFF
    num_bits = 0.0
    for exponent in np.unique(exponent_N):
        counts = np.unique(folded_N[exponent_N == exponent], return_counts=True)[1]
        num_bits -= float((counts * np.log2(counts / counts.sum())).sum())
    return float(np.mean(folded_N != 0)), max(num_bits / 8, 1.0)


def _xor_zstd(
    old_N: NDArray[np.uint16],
    new_N: NDArray[np.uint16],
) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress((old_N ^ new_N).tobytes())


def _zstd_patch(
    old_N: NDArray[np.uint16],
    new_N: NDArray[np.uint16],
) -> bytes:
    """Like `zstd --patch-from`, with tables that hold all of the base: its defaults lose much."""
    dictionary = zstandard.ZstdCompressionDict(
        old_N.tobytes(), dict_type=zstandard.DICT_TYPE_RAWCONTENT
    )
    size_log = int(old_N.nbytes + new_N.nbytes).bit_length()
    parameters = zstandard.ZstdCompressionParameters(
        window_log=size_log, hash_log=size_log - 1, chain_log=size_log - 1,
        search_log=1, min_match=6, strategy=zstandard.STRATEGY_DFAST,
    )  # fmt: skip
    compressor = zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters)
    return compressor.compress(new_N.tobytes())
