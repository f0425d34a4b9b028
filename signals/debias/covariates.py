"""What may explain a reaction and is not the content: visible time, latency, language, length.

Shapes: N = rows, D = columns of the design. One design serves the rating model (`raters`) and the
adjustment of rewards (`leniency`); it is kept with the fit, so later rows meet the same columns.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from signals.debias.fits import Floats, check_finite, check_same_length

MIN_SHARE = 0.01
"""A category rarer than this counts as "other"; so does one never seen before."""


class Covariates(NamedTuple):
    """Columns by name, all of one length [N]."""

    amounts: Mapping[str, Floats]
    """Non-negative and long-tailed (seconds, bytes): they enter as log(1 + x)."""
    categories: Mapping[str, NDArray[np.str_]]


class Amount(msgspec.Struct, frozen=True):
    """One numeric column; mean and spread of log(1 + x)."""

    name: str
    mean: float
    spread: float


class Category(msgspec.Struct, frozen=True):
    """One column of words; each level but the commonest becomes a 0/1 column, then "other"."""

    name: str
    base: str
    levels: tuple[str, ...]


class Design(msgspec.Struct, frozen=True):
    """How covariates become columns."""

    amounts: tuple[Amount, ...]
    categories: tuple[Category, ...]

    def columns(self, covariates: Covariates) -> Floats:
        """The design matrix [N, D]. Raises `ValueError` for a length or a sign that is off."""
        parts = [_standardised(amount, covariates.amounts[amount.name]) for amount in self.amounts]
        for category in self.categories:
            parts += _indicators(category, covariates.categories[category.name])
        check_same_length(**{f"column {i}": part for i, part in enumerate(parts)})
        return np.column_stack(parts)


def fit_design(covariates: Covariates) -> Design:
    """Means, spreads and levels of these rows."""
    amounts = []
    for name in sorted(covariates.amounts):
        logs_N = _logs(name, covariates.amounts[name])
        amounts.append(Amount(name, float(logs_N.mean()), float(logs_N.std()) or 1.0))
    categories = []
    for name in sorted(covariates.categories):
        levels, counts = np.unique(covariates.categories[name], return_counts=True)
        common = [
            str(level)
            for level, count in zip(levels, counts, strict=True)
            if count >= MIN_SHARE * counts.sum()
        ]
        base = str(levels[counts.argmax()])
        categories.append(Category(name, base, tuple(level for level in common if level != base)))
    return Design(tuple(amounts), tuple(categories))


def _logs(name: str, amounts_N: Floats) -> Floats:
    check_finite(**{name: amounts_N})
    if (amounts_N < 0).any():
        raise ValueError(f"{name}: expected no negative amount, got {amounts_N.min():g}")
    return np.log1p(amounts_N)


def _standardised(amount: Amount, amounts_N: Floats) -> Floats:
    return (_logs(amount.name, amounts_N) - amount.mean) / amount.spread


def _indicators(category: Category, words_N: NDArray[np.str_]) -> list[Floats]:
    known = (category.base, *category.levels)
    other_N = ~np.isin(words_N, known)
    columns = [words_N == level for level in category.levels]
    return [column.astype(float) for column in (*columns, other_N)]
