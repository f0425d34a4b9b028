"""Retention of real edits: functions of successive releases, against independent arithmetic."""

import ast
import functools
import statistics
from collections.abc import Iterator

import numpy as np
import pytest

from signals.retention_metrics import Metrics, four_gram, measure, no_revert, token_distance, tokens
from tests.data import wheel

PAIRS = (
    ("click", "8.0.4", "8.1.7"),
    ("click", "8.1.7", "8.1.8"),
    ("requests", "2.27.1", "2.28.2"),
    ("requests", "2.31.0", "2.32.3"),
)
REWRITE = ("click", "7.1.2", "8.0.0")


@functools.cache
def _functions(package: str, version: str) -> dict[str, str]:
    """Source of every function by file and qualified name."""
    found: dict[str, str] = {}
    with wheel(package, version) as files:
        for name in files.namelist():
            if name.startswith(f"{package}/") and name.endswith(".py"):
                text = files.read(name).decode()
                lines = text.splitlines()
                for path, node in _walk(ast.parse(text), ""):
                    found[f"{name}:{path}"] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return found


def _walk(node: ast.AST, path: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{path}.{child.name}"
            if isinstance(child, ast.FunctionDef):
                yield inner, child
            yield from _walk(child, inner)


def edited(package: str, old: str, new: str) -> list[tuple[str, str]]:
    """Functions that both releases have, and that differ."""
    before, after = _functions(package, old), _functions(package, new)
    return [
        (before[name], after[name])
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]


def _distance(one, other) -> int:
    """Levenshtein by the textbook's table, a row at a time."""
    row = np.arange(len(other) + 1)
    symbols = {symbol: i for i, symbol in enumerate({*one, *other})}
    theirs = np.array([symbols[symbol] for symbol in other])
    for i, symbol in enumerate(one, start=1):
        best = np.minimum(row[1:] + 1, row[:-1] + (theirs != symbols[symbol]))
        new = np.concatenate(([i], best)) - np.arange(len(other) + 1)
        row = np.minimum.accumulate(new) + np.arange(len(other) + 1)
    return int(row[-1])


def _common(one: str, other: str) -> int:
    """Longest common subsequence by the textbook's table, a row at a time."""
    row = np.zeros(len(other) + 1, int)
    theirs = np.array(list(other))
    for character in one:
        taken = np.maximum(row[1:], row[:-1] + (theirs == character))
        row = np.maximum.accumulate(np.concatenate(([0], taken)))
    return int(row[-1])


def _four_gram(one: str, other: str) -> float:
    ours, theirs = ([t[i : i + 4] for i in range(len(t) - 3)] for t in (one, other))
    left = list(theirs)
    shared = 0
    for gram in ours:
        if gram in left:
            left.remove(gram)
            shared += 1
    return 2 * shared / (len(ours) + len(theirs))


@pytest.mark.parametrize("pair", PAIRS)
def test_measures_of_real_edits_agree_with_independent_ones(pair):
    functions = [(a, b) for a, b in edited(*pair) if len(a) < 1_500 and len(b) < 1_500]
    assert len(functions) >= 4
    for old, new in functions[:10]:
        measured = measure("", old, new)
        assert measured.arc_chars == _common(old, new)
        assert measured.four_gram == pytest.approx(_four_gram(old, new))
        ours, theirs = tokens(old), tokens(new)
        expected = _distance(ours, theirs) / max(len(ours), len(theirs))
        assert measured.token_distance == pytest.approx(expected)


def _medians(pairs: list[tuple[str, str]]) -> tuple[float, float, float, float]:
    """Kept characters, 4-gram, token distance; and the share of rewrites."""
    measured = [measure("", old, new) for old, new in pairs]
    return (
        statistics.median(m.arc_chars / m.total_chars for m in measured),
        statistics.median(m.four_gram for m in measured),
        statistics.median(m.token_distance for m in measured),
        sum(m.token_distance > 0.33 for m in measured) / len(measured),
    )


@pytest.mark.parametrize("pair", PAIRS)
def test_people_touch_up_in_ordinary_releases(pair):
    kept_share, similar, distance, rewrites = _medians(edited(*pair))
    assert kept_share >= 0.95
    assert 0.8 <= similar <= 1.0
    assert distance <= 0.27
    assert rewrites <= 0.3


def test_a_rewrite_of_a_package_shows_in_token_distance_not_in_kept_characters():
    kept_share, _, _, rewrites = _medians(edited(*REWRITE))
    assert rewrites >= 0.3
    assert kept_share >= 0.9


def test_going_back_is_told_from_going_on():
    before, inserted = "return None\n", "return [price for price in prices if price]\n"
    assert no_revert(before, inserted, inserted) == 1.0
    assert no_revert(before, inserted, before) == 0.0
    improved = inserted.replace("prices", "self.prices")
    assert no_revert(before, inserted, improved) == 1.0
    half = "return None  # price for price\n"
    assert 0 < no_revert(before, inserted, half) < 1
    assert no_revert("same text", "same text", "other") == 1.0


def test_measures_by_hand():
    # abcd bcde | bcde cdef: one of two each.
    assert four_gram("abcde", "bcdef") == 0.5
    assert (four_gram("ab", "ab"), four_gram("ab", "abcd")) == (1.0, 0.0)
    assert token_distance("x = f(a)", "x = g(a, b)") == pytest.approx(3 / 8)
    assert token_distance("", "") == 0.0
    assert Metrics(1.0, 0.5, 30, 40, 0.1).kept == 0.375
    assert Metrics(1.0, 1.0, 30, 40, 0.4).kept == 0.5
    assert measure("a", "", "b").kept == 0.0
