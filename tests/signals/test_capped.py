"""Caps in the joiner: how much of each trace counts is decided when it is taken in."""

from signals.joiner import Joiner
from signals.state import State
from tendril.records import Episode
from tendril.settings import TrustSettings
from tests.builders import make_trace
from tests.signals.streams import IN_MEMORY, join_all, make_records, make_reviewer

DAY_S = 86_400.0


def _join(timed: list[tuple[float, str]], **limits: float) -> list[Episode]:
    """One trace of each user at each time."""
    records = make_records(
        [(at, make_trace(trace_id=f"t{n:03}", user_key=u)) for n, (at, u) in enumerate(timed)]
    )
    trust = TrustSettings(**limits)
    joiner = Joiner(State(IN_MEMORY), make_reviewer(), trust=trust)
    found = join_all(joiner, records)
    return [found[trace_id] for trace_id in sorted(found)]


def test_a_users_twenty_first_trace_of_an_hour_weighs_nothing_and_says_why():
    found = _join([(3_600.0 + n, "eve") for n in range(25)], max_user_events=20)
    assert [e.weight for e in found] == [1.0] * 20 + [0.0] * 5
    assert {(e.cap, e.capped_by) for e in found[20:]} == {(0.0, "user_events")}


def test_who_was_there_when_the_service_began_counts_from_the_first_day():
    """A fresh install knows nobody; it must not wait for weeks to learn."""
    day = [(DAY_S, "ada"), (8.5 * DAY_S, "ada"), (8.5 * DAY_S, "eve"), (16 * DAY_S, "eve")]
    found = _join(day, founding_s=7 * DAY_S)
    assert [(e.cap, e.capped_by) for e in found[:3]] == [
        (1.0, ""), (1.0, ""), (0.0, "new_account"),
    ]  # fmt: skip
    assert [e.account_age_s for e in found] == [None, None, 0.0, 7.5 * DAY_S]
    assert found[3].capped_by == "probation"
    assert 0 < found[3].cap <= 0.04


def test_without_a_founding_time_nobody_is_old():
    assert [e.cap for e in _join([(DAY_S, "ada")], founding_s=0)] == [0.0]


def test_what_was_simulated_is_not_capped():
    records = make_records([
        (3_600.0 + n, make_trace(trace_id=f"t{n}", lane="offline")) for n in range(30)
    ])  # fmt: skip
    joiner = Joiner(State(IN_MEMORY), make_reviewer(), trust=TrustSettings())
    assert {e.cap for e in join_all(joiner, records).values()} == {1.0}


def test_an_account_that_was_away_for_half_a_year_is_new_again():
    day = [(DAY_S, "old"), (DAY_S + 300 * DAY_S, "old")]
    found = _join(day, founding_s=DAY_S)
    assert [(e.cap, e.capped_by) for e in found] == [(1.0, ""), (0.0, "new_account")]
