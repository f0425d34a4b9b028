"""Which request comes next."""

import pytest

from serving.engine import EngineBusy
from serving.torch_engine.lanes import Lanes, latest_offline
from tests.serving.torch_engine.builders import make_running


def test_online_goes_first_and_offline_gets_no_more_than_its_slots() -> None:
    lanes = Lanes(max_waiting=9, lent_slots=1)
    offline, more = make_running([1], "offline"), make_running([2], "offline")
    online = make_running([3])
    for running in (offline, more, online):
        lanes.put(running)
    assert lanes.take([], num_slots=2) is online
    assert lanes.take([online], num_slots=2) is offline
    assert lanes.take([offline], num_slots=2) is None
    assert lanes.take([], num_slots=2) is more
    assert len(lanes) == 0


def test_a_full_engine_admits_online_only_where_offline_can_be_set_back() -> None:
    lanes = Lanes(max_waiting=9, lent_slots=2)
    online, offline = make_running([1]), make_running([2], "offline")
    running, running_offline = make_running([3]), make_running([4], "offline")
    lanes.put(offline)
    assert lanes.take([running], num_slots=1) is None
    assert lanes.take([running_offline], num_slots=1) is None
    lanes.put(online)
    assert lanes.take([running], num_slots=1) is None
    assert lanes.take([running_offline], num_slots=1) is online


def test_the_offline_request_that_came_last_is_set_back() -> None:
    earlier, online, latest = (
        make_running([1], "offline"), make_running([2]), make_running([3], "offline"),
    )  # fmt: skip
    earlier.arrived_at, latest.arrived_at, online.arrived_at = 1.0, 2.0, 3.0
    assert latest_offline([earlier, online, latest]) is latest
    assert latest_offline([latest, earlier]) is latest


def test_each_lane_is_full_on_its_own_and_a_place_put_back_is_the_first() -> None:
    lanes = Lanes(max_waiting=1, lent_slots=1)
    first, set_back = make_running([1], "offline"), make_running([2], "offline")
    lanes.put(first)
    with pytest.raises(EngineBusy, match="1 requests wait, limit 1"):
        lanes.put(make_running([3], "offline"))
    lanes.put(make_running([4]))
    lanes.put_back(set_back)
    lanes.discard(make_running([5]))
    assert [r.token_ids for r in lanes.drain()] == [[4], [2], [1]]
    assert len(lanes) == 0


def test_without_lent_slots_offline_requests_are_refused_not_left_waiting() -> None:
    with pytest.raises(EngineBusy, match="no slots are lent"):
        Lanes(max_waiting=1, lent_slots=0).put(make_running([1], "offline"))
