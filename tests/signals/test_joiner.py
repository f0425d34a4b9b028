"""The join: each fate, in any order and batch size; nothing vanishes, nothing counts twice."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signals.episode import is_held_out
from signals.state import State
from tendril.ids import digest_of
from tendril.records import DeadLetter, Episode, encode
from tests.builders import make_feedback, make_trace
from tests.signals.streams import (
    IN_MEMORY,
    LATER,
    WINDOW_S,
    feed,
    join_all,
    make_records,
    make_stream,
    open_joiner,
    step,
    take_episodes,
)

STREAM = make_stream()
TRACE_FATES = {"joined": 4, "duplicate": 1, "opted_out": 1}
FEEDBACK_FATES = {
    "joined": 3,  # early, accepted, undone
    "duplicate": 1,
    "orphan": 1,
    "late": 1,
    "opted_out": 2,
    "invalid": 5,  # before and about silence, other session, other tenant, garbage
}


def _fates(joiner, kind: str) -> dict[str, int]:
    ledger = joiner.ledger(0.0)
    assert ledger.balanced
    return {name: n for name, n in ledger.outcomes[kind].items() if n}


def test_every_record_meets_its_fate(tmp_path: Path):
    joiner = open_joiner(tmp_path / "state.db")
    episodes = join_all(joiner, make_records(STREAM))
    rewards = {trace_id: episode.reward for trace_id, episode in episodes.items()}
    assert rewards == {"t1": -0.5, "t2": 0.0, "t4": 0.75, "t9": None}
    assert _fates(joiner, "traces") == TRACE_FATES
    assert _fates(joiner, "feedback") == FEEDBACK_FATES


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_batch_sizes_do_not_change_a_byte(tmp_path: Path, batch: int):
    records = make_records(STREAM)
    expected = join_all(open_joiner(tmp_path / "one.db"), records)
    joiner = open_joiner(tmp_path / "many.db")
    assert join_all(joiner, records, batch=batch) == expected
    assert _fates(joiner, "feedback") == FEEDBACK_FATES


@settings(max_examples=20)
@given(order=st.permutations(range(len(STREAM))))
def test_a_batch_joins_the_same_in_any_order(order):
    records = make_records(STREAM)
    expected = join_all(open_joiner(IN_MEMORY), records)
    joiner = open_joiner(IN_MEMORY)
    assert join_all(joiner, [records[i] for i in order]) == expected
    assert _fates(joiner, "traces") == TRACE_FATES
    assert _fates(joiner, "feedback") == FEEDBACK_FATES


RECORDS = st.one_of(
    st.binary(max_size=40),
    st.builds(
        make_trace,
        trace_id=st.sampled_from("abcd"),
        served_at=st.floats(),
        train_consent=st.booleans(),
        token_bytes=st.tuples(*[st.integers(-1, 5)] * 3),
    ),
    st.builds(
        make_feedback,
        event_id=st.sampled_from("uvwxyz"),
        trace_id=st.sampled_from("abcdef"),
        session_id=st.sampled_from(["s1", "s2"]),
        type=st.sampled_from(
            ["suggestion.accepted", "suggestion.accepted_partially", "edit.undone", "edit.redone",
             "retention.measured", "feedback.vote", "suggestion.shown"]
        ),
        value=st.none() | st.floats(),
        horizon_s=st.none() | st.floats(),
        span=st.none() | st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
        visible_ms=st.none() | st.floats(),
        client_time=st.floats(),
        client_seq=st.integers(-3, 3),
    ),
)  # fmt: skip


@settings(max_examples=40)
@given(steps=st.lists(st.tuples(st.floats(0, 90), RECORDS), max_size=25), batch=st.integers(1, 9))
def test_whatever_comes_the_ledger_balances(steps, batch):
    times = sorted(at for at, _ in steps)
    records = make_records(zip(times, (record for _, record in steps), strict=True))
    joiner = open_joiner(IN_MEMORY, revise_after_s=(7.0, 20.0), lateness_s=15.0)
    feed(joiner, records, batch=batch)
    ledger = joiner.ledger(0.0)
    assert ledger.balanced
    assert sum(ledger.read.values()) == len(records)
    assert all(names["pending"] == 0 for names in ledger.outcomes.values())


def test_a_trace_stays_open_until_its_window_has_passed(tmp_path: Path):
    joiner = open_joiner(tmp_path / "state.db")
    records = make_records([(10.0, make_trace(trace_id="t1"))])
    step(joiner, records, now=10.0, caught_up=True)
    step(joiner, [], now=10.0 + WINDOW_S, caught_up=True)  # a record could still be on its way
    assert _fates(joiner, "traces") == {"pending": 1}
    step(joiner, [], now=10.0 + WINDOW_S + 1, caught_up=True)
    assert take_episodes(joiner)["t1"].closed_at == 10.0 + WINDOW_S


def test_a_backlog_of_traces_waits_for_its_feedback(tmp_path: Path):
    joiner = open_joiner(tmp_path / "state.db")
    traces = [(float(at), make_trace(trace_id=f"t{at}")) for at in range(0, 500, 100)]
    records = make_records([*traces, (1.0, make_feedback(trace_id="t0", client_seq=1))])
    step(joiner, records[:5], now=900.0, caught_up=False)  # all traces, no feedback read yet
    assert _fates(joiner, "traces") == {"pending": 5}
    step(joiner, records[5:], now=900.0, caught_up=True)
    assert take_episodes(joiner)["t0"].reward == 0.75


def test_records_that_are_read_again_are_not_counted_again(tmp_path: Path):
    records = make_records(STREAM)
    joiner = open_joiner(tmp_path / "state.db")
    step(joiner, records[:11], now=0.0, caught_up=False)
    reopened = open_joiner(tmp_path / "state.db")
    join_all(reopened, records)
    assert _fates(reopened, "feedback") == FEEDBACK_FATES


def test_an_outbox_that_was_not_emptied_is_sent_again_with_equal_bytes(tmp_path: Path):
    joiner = open_joiner(tmp_path / "state.db")
    step(joiner, make_records([(1.0, make_trace(trace_id="t1"))]), now=LATER, caught_up=True)
    [(number, key, record)] = joiner.take_outgoing()
    [(same_number, same_key, again)] = open_joiner(tmp_path / "state.db").outbox(after=0, limit=9)
    assert (number, key, encode(record)) == (same_number, same_key, encode(again))
    assert isinstance(record, Episode)
    assert record.episode_id == digest_of("t1", record.recipe_digest, "0")
    joiner.sent(number)
    assert joiner.outbox(after=0, limit=9) == []


def test_a_state_file_that_was_lost_numbers_on_behind_the_old_one(tmp_path: Path):
    state = State(tmp_path / "state.db")
    with state.change():
        state.outbox.start(41)
        [(number, _, _)] = state.outbox.put([("s1", make_trace())])
    with state.change():
        state.outbox.start(7)
        [(following, _, _)] = state.outbox.put([("s1", make_trace())])
    assert (number, following) == (41, 42)


def test_unreadable_bytes_become_a_dead_letter(tmp_path: Path):
    joiner = open_joiner(tmp_path / "state.db")
    step(joiner, make_records([(1.0, b"\x00")]), now=1.0, caught_up=True)
    [(_, _, letter)] = joiner.take_outgoing()
    assert isinstance(letter, DeadLetter)
    assert letter.value == b"\x00"


def test_old_ids_are_forgotten(tmp_path: Path):
    joiner = open_joiner(tmp_path / "state.db")
    records = make_records([(1.0, make_trace(trace_id="t1")), (99_999.0, make_trace())])
    step(joiner, records, now=99_999.0, caught_up=True)
    state = State(tmp_path / "state.db")
    assert state.closed_fates(["t1"]) == {}


def test_a_state_whose_counts_do_not_match_its_content_is_refused(tmp_path: Path):
    joiner = open_joiner(tmp_path / "state.db")
    step(joiner, make_records([(1.0, make_trace())]), now=1.0, caught_up=True)
    state = State(tmp_path / "state.db")
    with pytest.raises(RuntimeError, match="expected 1 accounted"), state.change():
        state.counts.settle("traces", 1.0, "joined", 2)
    with state.change():
        state.counts.settle("traces", 1.0, "joined")
    with pytest.raises(RuntimeError, match="expected 0 pending, found 1"):
        State(tmp_path / "state.db")


def test_sessions_are_held_out_by_hash_at_the_given_share():
    held_out = [is_held_out(f"s{i}", 0.1) for i in range(5_000)]
    assert held_out == [is_held_out(f"s{i}", 0.1) for i in range(5_000)]
    assert 0.08 < sum(held_out) / len(held_out) < 0.12
