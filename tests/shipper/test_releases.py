"""The release fold on short histories worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shipper.releases import ReleaseHistory, read_history
from tendril.log import MemoryLog
from tendril.records import Release
from tests.builders import make_release


def promoted(version: int) -> Release:
    return make_release(policy_version=version, state="promoted")


def rolled_back(version: int, target: int) -> Release:
    return make_release(policy_version=version, state="rolled_back", target_version=target)


def test_the_newest_promotion_is_live_and_the_one_before_is_previous() -> None:
    history = ReleaseHistory([promoted(1), promoted(2), promoted(4)])
    assert (history.live, history.previous) == (4, 2)


def test_nothing_is_live_before_the_bootstrap() -> None:
    with pytest.raises(LookupError, match="bootstrap"):
        _ = ReleaseHistory().live


def test_two_rollbacks_go_back_twice() -> None:
    history = ReleaseHistory([promoted(1), promoted(2), promoted(3), rolled_back(3, 2)])
    assert (history.live, history.previous, history.state_of(3)) == (2, 1, "rolled_back")
    history.add(rolled_back(2, 1))
    assert (history.live, history.previous) == (1, None)


def test_a_rollback_over_several_versions_takes_all_of_them_out_of_service() -> None:
    history = ReleaseHistory([promoted(1), promoted(2), promoted(3), rolled_back(3, 1)])
    assert history.live == 1
    assert [history.state_of(v) for v in (1, 2, 3)] == ["promoted", "rolled_back", "rolled_back"]


def test_a_new_branch_grows_from_the_older_version() -> None:
    history = ReleaseHistory([promoted(1), promoted(2), rolled_back(2, 1), promoted(3)])
    assert history.served == (1, 3)


def test_a_held_version_never_becomes_live() -> None:
    held = make_release(policy_version=2, state="gate_held")
    history = ReleaseHistory([promoted(1), held])
    assert (history.live, history.state_of(2), history.state_of(9)) == (1, "gate_held", None)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=8))
def test_repeating_the_last_event_changes_nothing(steps: list[tuple[bool, int]]) -> None:
    history = ReleaseHistory([promoted(1)])
    for goes_back, version in steps:
        behind = [v for v in history.served[:-1] if v != history.live]
        event = promoted(version)
        if goes_back and behind:
            event = rolled_back(history.live, behind[version % len(behind)])
        history.add(event)
        once = (history.served, [history.state_of(v) for v in range(1, 7)])
        history.add(event)
        assert (history.served, [history.state_of(v) for v in range(1, 7)]) == once


def test_the_history_of_a_log_is_read_whole() -> None:
    log = MemoryLog()
    log.append([("releases", promoted(version)) for version in range(1, 1_204)])
    assert read_history(log).live == 1_203
    assert read_history(MemoryLog()).events == ()
