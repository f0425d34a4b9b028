"""Where checkpoint elements lie in a model whose loader fuses, slices, permutes or pads."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from serving.vllm_engine.coordinates import CoordinateMap, NotMovable

CHECKPOINT = {
    "q": torch.randn(6, 4),
    "k": torch.randn(2, 4),
    "out": torch.randn(4, 8),
    "norm": torch.randn(4),
}


class Fused(nn.Module):
    """One of two ranks: q and k stacked and cut, `out` cut by columns, rows permuted, padding."""

    def __init__(self, dtype: torch.dtype, rank: int = 0) -> None:
        super().__init__()
        self.rank = rank
        self.qk = nn.Parameter(torch.full((4, 4), 7.0, dtype=dtype), requires_grad=False)
        self.out = nn.Parameter(torch.full((5, 4), 127.5, dtype=dtype), requires_grad=False)
        self.norm = nn.Parameter(torch.zeros(4, dtype=dtype), requires_grad=False)
        self.norm_twin = nn.Parameter(torch.zeros(4, dtype=dtype), requires_grad=False)

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in weights:
            rank = self.rank
            if name == "q":
                self.qk.data[:3] = tensor[3 * rank : 3 * rank + 3]
            elif name == "k":
                self.qk.data[3:] = tensor[rank : rank + 1]
            elif name == "out":
                self.out.data[:4] = tensor[[2, 0, 3, 1], 4 * rank : 4 * rank + 4]
            else:
                self.norm.data.copy_(tensor)
                self.norm_twin.data.copy_(tensor)


def loaded(dtype: torch.dtype, rank: int = 0) -> tuple[Fused, CoordinateMap]:
    model = Fused(dtype, rank)
    model.load(CHECKPOINT.items())
    return model, CoordinateMap.build(model, model.load, CHECKPOINT)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_element_is_found_where_the_loader_put_it(dtype: torch.dtype, rank: int) -> None:
    model, places = loaded(dtype, rank)
    found = {name: torch.full_like(p, torch.nan).view(-1) for name, p in model.named_parameters()}
    for name, tensor in CHECKPOINT.items():
        for target, mask, position in places.places(name, None):
            found[target][position] = tensor.view(-1)[mask].to(dtype)
    for name, parameter in model.named_parameters():
        covered = ~found[name].isnan()
        assert torch.equal(found[name][covered], parameter.view(-1)[covered])
        assert int(covered.sum()) == (16 if name in ("qk", "out") else 4)


def test_building_leaves_weights_and_padding_as_they_were() -> None:
    model, _ = loaded(torch.bfloat16)
    assert torch.equal(model.out[4], torch.full((4,), 127.5, dtype=torch.bfloat16))
    assert torch.equal(model.qk[:3], CHECKPOINT["q"][:3].bfloat16())


def test_positions_of_a_sparse_change() -> None:
    _, places = loaded(torch.float32)
    ((target, mask, position),) = places.places("k", torch.tensor([1, 3, 5]))
    assert (target, mask.tolist(), position.tolist()) == ("qk", [True, True, False], [13, 15])


class Stacked(nn.Module):
    """Long tensors, one after the other in one parameter: one run holds several of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Parameter(torch.zeros(6_000), requires_grad=False)

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in weights:
            start = {"a": 0, "b": 2_500, "c": 5_000}[name]
            self.stack.data[start : start + tensor.numel()] = tensor


@pytest.mark.parametrize("max_elements", [7, 1_000_000])
def test_long_runs_come_as_slices_and_short_ones_as_positions(max_elements: int) -> None:
    stacked = Stacked()
    long = {"a": torch.randn(2_500), "b": torch.randn(2_500), "c": torch.randn(1_000)}
    stacked.load(long.items())
    short, short_places = loaded(torch.float32)
    for model, places, checkpoint, kind in (
        (stacked, CoordinateMap.build(stacked, stacked.load, long), long, slice),
        (short, short_places, CHECKPOINT, Tensor),
    ):
        found = {n: torch.full_like(p, torch.nan).view(-1) for n, p in model.named_parameters()}
        for name, tensor in checkpoint.items():
            for target, source, place in places.pieces(name, max_elements):
                assert name == "c" or isinstance(source, kind)  # `c` is too short for a slice
                found[target][place] = tensor.view(-1)[source]
        for name, parameter in model.named_parameters():
            covered = ~found[name].isnan()
            assert torch.equal(found[name][covered], parameter.view(-1)[covered])
            assert int(covered.sum()) == {"stack": 6_000, "qk": 16, "out": 16}.get(name, 4)


def test_a_tensor_that_is_held_twice_is_changed_twice() -> None:
    _, places = loaded(torch.float32)
    assert {target for target, _, _ in places.places("norm", torch.tensor([2]))} == {
        "norm", "norm_twin",
    }  # fmt: skip


def test_what_lies_on_another_rank_is_missing_here() -> None:
    _, places = loaded(torch.float32)
    assert places.missing() == ["q", "k", "out"]


def test_a_position_outside_the_tensor_is_an_error() -> None:
    _, places = loaded(torch.float32)
    with pytest.raises(IndexError, match=r"norm: expected positions below 4, got 4"):
        list(places.places("norm", torch.tensor([4])))


def test_a_loader_that_computes_is_refused() -> None:
    model = nn.Linear(4, 4, bias=False)
    checkpoint = {"w": torch.randn(4, 4)}

    def load(weights: Iterable[tuple[str, Tensor]]) -> None:
        for _, tensor in weights:
            model.weight.data.add_(tensor)

    with pytest.raises(NotMovable, match="transforms weights"):
        CoordinateMap.build(model, load, checkpoint)


def test_packed_weights_are_refused() -> None:
    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(torch.empty(0))
    with pytest.raises(NotMovable, match="packed"):
        CoordinateMap.build(model, lambda _: None, {"w": torch.randn(4, 4)})


def test_a_loader_that_loads_nothing_is_refused() -> None:
    with pytest.raises(NotMovable, match="none of the checkpoint"):
        CoordinateMap.build(nn.Linear(4, 4), lambda _: None, {"w": torch.randn(4, 4)})
