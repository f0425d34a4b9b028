"""Any sequence of appends, repeats, deletions and rewrites leaves exactly the expected rows."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tendril.lake.lake import Lake
from tests.tendril.lake.lake_rows import APP, feedback_rows, files_with, offsets_in, user

NUM_USERS = 3
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("repeat"), st.integers(1, 5)),
        st.tuples(st.just("delete"), st.integers(0, NUM_USERS - 1)),
        st.tuples(st.just("compact"), st.just(0)),
        st.tuples(st.just("vacuum"), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=10,
)


@given(steps)
@settings(max_examples=30, deadline=None)
def test_any_sequence_leaves_exactly_the_expected_rows(sequence):
    with tempfile.TemporaryDirectory() as folder:
        lake, end, expected = Lake(folder), 0, set()
        for step, number in sequence:
            if step == "append":
                rows = feedback_rows(end, end + number)
                assert lake.append("feedback", rows, {APP: end + number})
                expected |= set(range(end, end + number))
                end += number
            elif step == "repeat" and end:
                first = max(0, end - number)
                assert not lake.append("feedback", feedback_rows(first, end), {APP: end})
            elif step == "delete":
                gone = {n for n in expected if n % NUM_USERS == number}
                assert lake.delete("feedback", [user(number)]).num_rows_before == len(gone)
                assert files_with(Path(folder), user(number)) == []
                expected -= gone
            elif step == "compact":
                lake.compact("feedback")
            elif step == "vacuum":
                lake.vacuum("feedback", keep_s=0)
            elif step == "reopen":
                lake = Lake(folder)
            assert offsets_in(lake) == sorted(expected)
        assert lake.committed("feedback", [APP]).get(APP, 0) == end
