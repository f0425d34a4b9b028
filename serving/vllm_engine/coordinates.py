"""Where each element of a checkpoint lies in the parameters of a running model.

An engine fuses, slices and permutes tensors as it loads them. This asks the model's own loader:
it loads tensors that hold their own element numbers, a few bits at a time, and reads the numbers
back from the parameters. Works for any layout that copies elements; `CoordinateMap.build` refuses
a model whose loader computes with them. Shape letters: E = elements of a parameter, R = runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

EXACT_BITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Whole numbers below 2 to this many bits are exact in the dtype."""

LONG_ELEMENTS = 1_024
"""A mean run from which on runs are worth a step of a Python loop each."""

Load = Callable[[Iterable[tuple[str, Tensor]]], object]
Piece = slice | Tensor


class NotMovable(RuntimeError):
    """This model's parameters are not the checkpoint's elements in another order."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Consecutive checkpoint elements that lie consecutively in one parameter, by source."""

    parameter: str
    source_R: Tensor  # int64, first element's number over the whole checkpoint
    target_R: Tensor  # int64, its position in the flattened parameter
    length_R: Tensor  # int64

    def locate(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """For elements by number: which of them lie here (mask), and where those lie."""
        run = torch.searchsorted(self.source_R, numbers, right=True) - 1
        inside = run >= 0
        run = run.clamp(min=0)
        offset = numbers - self.source_R[run]
        inside &= offset < self.length_R[run]
        return inside, (self.target_R[run] + offset)[inside]

    def within(self, first: int, end: int) -> Tensor:
        """[R, 3]: source, target and length of what lies here of elements `first` to `end`."""
        start_R = self.source_R.clamp(min=first)
        length_R = (self.source_R + self.length_R).clamp(max=end) - start_R
        target_R = self.target_R + start_R - self.source_R
        return torch.stack([start_R, target_R, length_R], 1)[length_R > 0]


class CoordinateMap:
    """For one worker's model: from checkpoint elements to places in its parameters."""

    def __init__(
        self, first_number: dict[str, int], sizes: dict[str, int], runs: list[Runs]
    ) -> None:
        self.first_number, self.sizes, self.runs = first_number, sizes, runs

    def places(self, name: str, index: Tensor | None) -> Iterator[tuple[str, Tensor, Tensor]]:
        """(parameter, mask over `index`, positions) for elements of tensor `name`.

        `index` None means all of it. Raises `KeyError` for a tensor the model does not have.
        """
        first, size = self.first_number[name], self.sizes[name]
        numbers = torch.arange(size) if index is None else index
        if (
            index is not None
            and index.numel()
            and not 0 <= int(index.min()) <= int(index.max()) < size
        ):
            raise IndexError(f"{name}: expected positions below {size}, got {int(index.max())}")
        for runs in self.runs:
            if int(runs.source_R[0]) >= first + size:
                continue
            if int(runs.source_R[-1] + runs.length_R[-1]) <= first:
                continue
            mask, positions = runs.locate(numbers + first)
            if positions.numel():
                yield runs.parameter, mask, positions

    def pieces(self, name: str, max_elements: int) -> Iterator[tuple[str, Piece, Piece]]:
        """(parameter, elements of tensor `name`, where those lie), until all of it was named.

        Long runs come as slices, which are thirty times faster to compare than positions.
        """
        first, size = self.first_number[name], self.sizes[name]
        groups = [(runs.parameter, runs.within(first, first + size)) for runs in self.runs]
        if sum(len(found_R3) for _, found_R3 in groups) * LONG_ELEMENTS > size:
            yield from self._positions(name, max_elements)
            return
        for parameter, found_R3 in groups:
            for source, target, length in found_R3.tolist():
                for start in range(0, length, max_elements):
                    num = min(max_elements, length - start)
                    here, there = source - first + start, target + start
                    yield parameter, slice(here, here + num), slice(there, there + num)

    def _positions(self, name: str, max_elements: int) -> Iterator[tuple[str, Piece, Piece]]:
        size = self.sizes[name]
        for start in range(0, size, max_elements):
            index = torch.arange(start, min(start + max_elements, size))
            for parameter, mask, positions in self.places(name, index):
                yield parameter, index[mask], positions

    def missing(self) -> list[str]:
        """Tensors of which an element lies nowhere: with one worker, a map that cannot be right."""
        return [name for name, size in self.sizes.items() if not self._covers(name, size)]

    def _covers(self, name: str, size: int) -> bool:
        covered = torch.zeros(size, dtype=torch.bool)
        for _, mask, _ in self.places(name, None):
            covered |= mask
        return bool(covered.all())

    @classmethod
    def build(
        cls, model: nn.Module, load: Load, checkpoint: Mapping[str, Tensor]
    ) -> "CoordinateMap":
        """Map `model`, loaded from `checkpoint` by `load`; its weights are as before at the end.

        Raises `NotMovable` for packed parameters and for loaders that compute.
        """
        parameters = dict(model.named_parameters())
        _refuse_packed(parameters)
        before = {name: _checksum(p) for name, p in parameters.items()}
        first_number, total = {}, 0
        for name, tensor in checkpoint.items():
            first_number[name] = total
            total += tensor.numel()
        found = _element_numbers(parameters, load, checkpoint, first_number, total)
        load((name, tensor) for name, tensor in checkpoint.items())
        changed = [name for name, p in parameters.items() if _checksum(p) != before[name]]
        if changed:
            raise NotMovable(f"loading again changes {changed[:3]}: the engine transforms weights")
        runs = [r for name, numbers_E in found.items() for r in _runs(name, numbers_E)]
        if not runs:
            raise NotMovable("the loader wrote none of the checkpoint's elements")
        sizes = {name: tensor.numel() for name, tensor in checkpoint.items()}
        return cls(first_number, sizes, sorted(runs, key=lambda r: int(r.source_R[0])))


def _refuse_packed(parameters: Mapping[str, nn.Parameter]) -> None:
    packed = [n for n, p in parameters.items() if p.numel() == 0 or not p.is_contiguous()]
    if packed:
        raise NotMovable(f"packed or strided parameters cannot be patched: {packed[:3]}")


def _checksum(parameter: nn.Parameter) -> tuple[float, float]:
    """Two sums that a permutation or a change of an element alters."""
    flat = parameter.detach().reshape(-1).double()
    weights = torch.arange(1, flat.numel() + 1, device=flat.device).double().remainder_(65_521)
    return float(flat.nan_to_num().sum()), float((flat.nan_to_num() * weights).sum())


def _element_numbers(
    parameters: Mapping[str, nn.Parameter],
    load: Load,
    checkpoint: Mapping[str, Tensor],
    first_number: Mapping[str, int],
    total: int,
) -> dict[str, Tensor]:
    """For each parameter: the element number at each place, -1 where the loader wrote none."""
    bits = min(EXACT_BITS[p.dtype] for p in parameters.values() if p.dtype in EXACT_BITS)
    mask = 2**bits - 1

    def plane(shift: int, flip: bool) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in checkpoint.items():
            numbers = torch.arange(tensor.numel()) + first_number[name]
            part = numbers >> shift & mask
            part = mask - part if flip else part
            yield name, part.reshape(tensor.shape).to(torch.float32)

    def read() -> dict[str, Tensor]:
        # A copy: on a CPU the next plane would be read through it.
        return {n: p.detach().reshape(-1).to("cpu", torch.float32, copy=True)
                for n, p in parameters.items()}  # fmt: skip

    load(plane(0, flip=True))
    flipped = read()
    load(plane(0, flip=False))
    low = read()
    # What a loader never touched reads the same both times, and does not add up.
    written = {name: low[name] + flipped[name] == mask for name in parameters}
    numbers = {name: low[name].long() for name in parameters}
    for shift in range(bits, max(total - 1, 1).bit_length(), bits):
        load(plane(shift, flip=False))
        for name, values in read().items():
            numbers[name] |= values.long() << shift
    return {name: torch.where(written[name], n, -1) for name, n in numbers.items()}


def _runs(parameter: str, numbers_E: Tensor) -> list[Runs]:
    """Maximal runs, sorted by source, in as many groups as an element occurs in the parameter."""
    starts_E = torch.ones_like(numbers_E, dtype=torch.bool)
    starts_E[1:] = (numbers_E[1:] != numbers_E[:-1] + 1) | (numbers_E[:-1] < 0)
    target_R = starts_E.nonzero().reshape(-1)
    ends_R = torch.cat([target_R[1:], torch.tensor([numbers_E.numel()])])
    kept_R = numbers_E[target_R] >= 0
    target_R, length_R = target_R[kept_R], (ends_R - target_R)[kept_R]
    groups: list[Runs] = []
    source_R = numbers_E[target_R]
    order_R = torch.argsort(source_R, stable=True)
    rest = (source_R[order_R], target_R[order_R], length_R[order_R])
    while rest[0].numel():
        source, target, length = rest
        ends = torch.cummax(source + length, 0).values
        free = torch.ones_like(source, dtype=torch.bool)
        free[1:] = source[1:] >= ends[:-1]
        groups.append(Runs(parameter, source[free], target[free], length[free]))
        rest = (source[~free], target[~free], length[~free])
    return groups
