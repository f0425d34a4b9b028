"""Early looks, the end of the window and latecomers: each a revision, whatever the batch sizes."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signals.joiner import Joiner
from tendril.log import LogRecord
from tendril.records import MATURITIES, Consent, Episode, encode
from tests.builders import make_feedback, make_trace
from tests.signals.streams import IN_MEMORY, feed, make_records, make_silence, open_joiner, step

SCHEDULE: dict[str, Any] = {"revise_after_s": (5.0, 20.0), "lateness_s": 30.0}  # window: 60 s


def _event(**fields: Any):
    return make_feedback(trace_id="t1", **fields)


def _episodes(joiner: Joiner) -> list[Episode]:
    return [r for _, _, r in joiner.take_outgoing() if isinstance(r, Episode)]


def _join(timed, **schedule: Any) -> list[Episode]:
    joiner = open_joiner(IN_MEMORY, **(SCHEDULE | schedule))
    feed(joiner, make_records(timed))
    assert joiner.ledger(0.0).balanced
    return _episodes(joiner)


def test_a_reward_is_provisional_then_revised_then_final():
    found = _join([
        (0.0, make_trace(trace_id="t1")),
        (1.0, _event(type="suggestion.rejected", client_seq=1)),
        (10.0, _event(client_seq=2)),
        (11.0, _event(type="edit.undone", client_seq=3, client_time=1_002.0)),
    ])  # fmt: skip
    assert [(e.maturity, e.revision, e.closed_at, e.outcome) for e in found] == [
        ("provisional", 0, 5.0, "rejected"),
        ("revised", 1, 20.0, "undone"),
        ("final", 2, 60.0, "undone"),
    ]
    assert [e.supersedes for e in found] == [None, found[0].episode_id, found[1].episode_id]


def test_an_early_look_without_news_says_nothing():
    timed = [(0.0, make_trace(trace_id="t1")), (1.0, _event(type="suggestion.shown"))]
    assert [e.maturity for e in _join(timed, revise_after_s=(5.0,))] == ["final"]


def test_each_trace_is_ripe_once_for_training():
    found = _join([(0.0, make_trace(trace_id="t1")), (1.0, _event()),
                   (40.0, _event(type="edit.undone", client_seq=2))])  # fmt: skip
    assert [e.maturity for e in found] == ["provisional", "revised", "final"]
    for first, ripe in enumerate(MATURITIES):
        assert [e.is_first(ripe) for e in found] == [i == first for i in range(3)]


def test_feedback_from_inside_the_window_that_was_logged_after_it_revises_the_end():
    trace = make_trace(trace_id="t1", served_at=1_000.0)
    in_time = _event(type="edit.reverted", client_seq=2, client_time=1_050.0, ingested_at=1_085.0)
    beat = make_feedback(type="heartbeat", trace_id=None, client_time=1_001.0, ingested_at=1_001.0)
    timed = [(1_000.0, trace), (1_001.0, beat), (1_002.0, _event()), (1_085.0, in_time)]
    found = _join(timed)
    assert [(e.maturity, e.closed_at) for e in found][-2:] == [
        ("final", 1_060.0), ("final", 1_090.0),
    ]  # fmt: skip
    assert (found[-2].reward, found[-1].reward) == (0.75, -0.25)
    assert found[-1].supersedes == found[-2].episode_id


@pytest.mark.parametrize(
    ("logged_at", "happened_at"), [(1_085.0, 1_070.0), (1_091.0, 1_050.0)],
    ids=["it happened after the window", "it was logged after the lateness"],
)  # fmt: skip
def test_what_is_too_late_is_counted_as_late(logged_at: float, happened_at: float):
    late = _event(type="edit.reverted", client_seq=2, client_time=happened_at,
                  ingested_at=logged_at)  # fmt: skip
    beat = make_feedback(type="heartbeat", trace_id=None, client_time=1_001.0, ingested_at=1_001.0)
    joiner = open_joiner(IN_MEMORY, **SCHEDULE)
    trace = make_trace(trace_id="t1", served_at=1_000.0)
    feed(joiner, make_records(
        [(1_000.0, trace), (1_001.0, beat), (1_002.0, _event()), (logged_at, late)]
    ))  # fmt: skip
    fates = joiner.ledger(0.0).outcomes["feedback"]
    assert (fates["joined"], fates["late"], fates["no_trace"]) == (1, 1, 1)
    assert {e.closed_at for e in _episodes(joiner)} <= {1_005.0, 1_020.0, 1_060.0}


@settings(max_examples=30)
@given(
    events=st.lists(
        st.tuples(
            st.floats(0, 120),
            st.sampled_from("abc"),
            st.sampled_from(["suggestion.accepted", "suggestion.rejected", "edit.undone"]),
            st.integers(1, 9),
        ),
        max_size=12,
    ),
    batch=st.sampled_from([1, 2, 7]),
)
def test_batch_sizes_change_neither_bytes_nor_order(events, batch: int):
    traces = [(float(i), make_trace(trace_id=name)) for i, name in enumerate("abc")]
    reports = [
        (at, make_feedback(event_id=f"e{i % 4}", trace_id=name, type=kind, client_seq=seq))
        for i, (at, name, kind, seq) in enumerate(sorted(events))
    ]
    records = make_records(sorted([*traces, *reports], key=lambda timed: timed[0]))
    whole, parts = open_joiner(IN_MEMORY, **SCHEDULE), open_joiner(IN_MEMORY, **SCHEDULE)
    feed(whole, records)
    feed(parts, records, batch=batch)
    assert [encode(e) for e in _episodes(whole)] == [encode(e) for e in _episodes(parts)]
    assert whole.ledger(0.0) == parts.ledger(0.0)


def _withdrawn(at: float, person: str) -> LogRecord:
    value = encode(Consent(person=person, train=False, at=at))
    return LogRecord(Consent.TOPIC, 0, 0, "c", value, at)


def test_who_withdraws_while_a_window_is_open_is_not_learned_from(tmp_path: Path):
    from signals.intake import take
    from tendril.consent import person_of

    joiner = open_joiner(tmp_path / "state.db", **SCHEDULE)
    trace = make_trace(trace_id="t1")
    step(joiner, make_records([(0.0, trace), (1.0, _event())]), now=2.0, caught_up=True)
    decided = [_withdrawn(3.0, person_of(trace.tenant, trace.user_key))]
    joiner.step(take([]), now=1_000.0, caught_up=True, consents=decided)
    assert _episodes(joiner) == []
    outcomes = joiner.ledger(0.0).outcomes
    assert outcomes["traces"]["opted_out"] == outcomes["feedback"]["opted_out"] == 1


def test_silence_is_final_at_once_and_feedback_about_it_is_invalid():
    joiner = open_joiner(IN_MEMORY, **SCHEDULE)
    records = make_records([(0.0, make_silence(trace_id="t1")), (1.0, _event())])
    step(joiner, records, now=2.0, caught_up=True)
    [episode] = _episodes(joiner)
    assert (episode.maturity, episode.reward, episode.closed_at) == ("final", 0.0, 0.0)
    assert joiner.ledger(0.0).outcomes["feedback"]["invalid"] == 1


def test_a_topic_that_falls_silent_does_not_hold_the_others_up():
    joiner = open_joiner(IN_MEMORY, **SCHEDULE)
    step(joiner, make_records([(0.0, make_trace(trace_id="t1"))]))
    assert step(joiner, [], now=61.0, caught_up=True) is False
    assert [e.maturity for e in _episodes(joiner)] == ["final"]
