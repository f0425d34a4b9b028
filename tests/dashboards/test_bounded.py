"""Memory stays bounded and sums stay right."""

from hypothesis import given
from hypothesis import strategies as st

from dashboards.bounded import Curve, Recent, RecentCount


def test_the_oldest_id_is_forgotten_first() -> None:
    recent: Recent[int] = Recent(2)
    assert [recent.add(key, i) for i, key in enumerate("aabc")] == [True, False, True, True]
    assert (recent.get("a"), recent.get("b"), recent.get("c"), len(recent)) == (None, 2, 3, 2)


def test_recent_counts_forget_old_seconds() -> None:
    recent = RecentCount(10)
    for second in range(1_000):
        recent.add(second + 0.5)
    assert recent.count(1_000.0) == 10
    assert recent.count(1_005.0) == 5


@given(st.lists(st.floats(0, 1e6), max_size=300))
def test_widening_bins_loses_no_decision(times: list[float]) -> None:
    curve = Curve(bin_s=10.0, max_bins=8)
    for at in times:
        curve.at(at).count_decision(failed=False, shown=True)
    starts = [at for at, _ in curve]
    assert len(curve) <= 8
    assert starts == sorted(starts)
    assert sum(tally.decisions for _, tally in curve) == len(times)
    assert all(start <= max(times) for start in starts)
