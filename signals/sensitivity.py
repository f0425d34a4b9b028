"""How rewards move when a figure of the recipe does: which weights matter, and which do not."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from signals.judge import judge
from signals.recipe import Recipe
from tendril.records import Feedback, Trace

Case = tuple[Trace, Sequence[Feedback]]
SKIPPED = frozenset({"name", "classifier", "grader", "horizon_s"})
"""Not figures, or moments at which something was measured: changing them would lose data."""


class Moved(NamedTuple):
    """What one changed figure did to the rewards of all cases."""

    figure: str
    factor: float
    mean_change: float
    """Mean of the absolute differences."""
    max_change: float
    num_turned: int
    """Rewards whose sign is another one."""
    num_known: int


def sensitivity(
    recipe: Recipe, cases: Sequence[Case], *, factors: Sequence[float] = (0.8, 1.2)
) -> list[Moved]:
    """Each figure of `recipe` times each factor, alone; those that do not allow it are left out."""
    base = _rewards(recipe, cases)
    return [
        _moved(name, factor, base, _rewards(changed, cases))
        for factor in factors
        for name, changed in variants(recipe, factor)
    ]


def variants(recipe: Recipe, factor: float) -> Iterator[tuple[str, Recipe]]:
    """Valid recipes that differ from `recipe` in one figure, with its dotted name."""
    content = msgspec.to_builtins(recipe)
    for path, figure in list(_figures(content, ())):
        changed = msgspec.to_builtins(recipe)
        place = changed
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = figure * factor
        try:
            yield ".".join(map(str, path)), msgspec.convert(changed, Recipe)
        except msgspec.ValidationError:
            continue


def _figures(
    content: object, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], float]]:
    if isinstance(content, dict):
        entries = list(content.items())
    elif isinstance(content, list | tuple):
        entries = list(enumerate(content))
    else:
        if isinstance(content, int | float) and not isinstance(content, bool) and content != 0:
            yield path, float(content)
        return
    for step, inner in entries:
        if step not in SKIPPED:
            yield from _figures(inner, (*path, step))


def _rewards(recipe: Recipe, cases: Sequence[Case]) -> list[float | None]:
    return [judge(recipe, trace, events, age_s=math.inf).reward for trace, events in cases]


def _moved(
    name: str, factor: float, base: Sequence[float | None], changed: Sequence[float | None]
) -> Moved:
    pairs = [(a, b) for a, b in zip(base, changed, strict=True) if a is not None and b is not None]
    changes = [abs(a - b) for a, b in pairs]
    return Moved(
        figure=name,
        factor=factor,
        mean_change=math.fsum(changes) / max(1, len(changes)),
        max_change=max(changes, default=0.0),
        num_turned=sum(a * b < 0 for a, b in pairs),
        num_known=len(pairs),
    )
