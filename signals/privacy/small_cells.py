"""Reports show no group of people so small that a figure says something about one of them."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Cells(NamedTuple):
    """What may be shown."""

    rows: list[Mapping[str, Any]]
    num_suppressed: int
    """Left out, so that a reader knows that the rows are not all there is."""


def suppress_small_cells(
    rows: Iterable[Mapping[str, Any]], min_users: int, *, users: str = "num_users"
) -> Cells:
    """Leave out rows whose column `users` is below `min_users` (anchors 5.1: 20).

    Where exactly one row goes, the smallest other one goes with it: else the missing figure follows
    from a total. Raises `KeyError` for a row that does not say how many users it is about.
    """
    all_rows = list(rows)
    shown = [row for row in all_rows if row[users] >= min_users]
    if len(all_rows) - len(shown) == 1 and shown:
        smallest = min(range(len(shown)), key=lambda place: int(shown[place][users]))
        del shown[smallest]
    return Cells(shown, len(all_rows) - len(shown))
