"""No slice of a report is about so few people that it is about one of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.privacy.small_cells import suppress_small_cells


def rows(*num_users: int) -> list[dict[str, int]]:
    return [{"slice": i, "num_users": n} for i, n in enumerate(num_users)]


def test_small_slices_go_and_are_counted() -> None:
    cells = suppress_small_cells(rows(100, 19, 3, 20), 20)
    assert [row["num_users"] for row in cells.rows] == [100, 20]
    assert cells.num_suppressed == 2


def test_a_single_missing_slice_takes_the_smallest_other_with_it() -> None:
    cells = suppress_small_cells(rows(100, 5, 30), 20)
    assert [row["num_users"] for row in cells.rows] == [100]
    assert cells.num_suppressed == 2


def test_a_row_that_does_not_say_how_many_is_refused() -> None:
    with pytest.raises(KeyError):
        suppress_small_cells([{"slice": 1}], 20)


@given(st.lists(st.integers(0, 60), max_size=12))
def test_nothing_small_is_shown_and_nothing_missing_can_be_worked_out(counts: list[int]) -> None:
    cells = suppress_small_cells(rows(*counts), 20)
    assert all(row["num_users"] >= 20 for row in cells.rows)
    assert len(cells.rows) + cells.num_suppressed == len(counts)
    assert cells.num_suppressed != 1 or not cells.rows
