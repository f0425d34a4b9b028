"""Records as Arrow and back: equal, but for the tokens of users who did not consent."""

from datetime import date

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tendril.lake.columns import BATCH_ROWS
from tendril.lake.rows import (
    UnstorableRecords,
    days,
    episodes_to_arrow,
    feedback_to_arrow,
    from_arrow,
    ledgers_to_arrow,
    quarantined_to_arrow,
    traces_to_arrow,
    user_bucket,
    without_tokens,
)  # fmt: skip
from tendril.lake.schema import table_specs
from tendril.log import LogRecord
from tendril.records import Episode, Feedback, Ledger, Sampling, ToolCall, Trace
from tests.builders import make_episode, make_feedback, make_segment, make_trace
from tests.tendril.record_strategies import records

NOON_2024 = 1_720_008_000.0  # 2024-07-03 12:00 UTC


def places(number, topic="traces"):
    return [LogRecord(topic, 1, 40 + n, "s1", b"", NOON_2024 + n) for n in range(number)]


@given(st.lists(records(Trace), max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_trace_comes_back_equal_but_for_tokens_withheld(traces):
    rows = traces_to_arrow(traces, places(len(traces)))
    assert from_arrow(Trace, rows) == [without_tokens(trace) for trace in traces]


@given(st.lists(records(Feedback), max_size=4))
@settings(max_examples=40, deadline=None)
def test_feedback_comes_back_equal(feedback):
    rows = feedback_to_arrow(feedback, places(len(feedback), "feedback"))
    assert from_arrow(Feedback, rows) == feedback


@given(st.lists(records(Episode), max_size=4))
@settings(max_examples=40, deadline=None)
def test_an_episode_comes_back_equal_but_for_tokens_withheld(episodes):
    rows = episodes_to_arrow(episodes)
    assert from_arrow(Episode, rows) == [without_tokens(episode) for episode in episodes]


def traces_without_places(traces):
    return traces_to_arrow(traces, places(1) * len(traces))


def feedback_without_places(feedback):
    return feedback_to_arrow(feedback, places(1, "feedback") * len(feedback))


@pytest.mark.parametrize(
    ("record_type", "to_arrow"),
    [
        (Trace, traces_without_places),
        (Feedback, feedback_without_places),
        (Episode, episodes_to_arrow),
    ],
)
@given(data=st.data(), number=st.integers(1, 3 * BATCH_ROWS))
@settings(max_examples=15, deadline=None)
def test_a_row_is_the_same_whichever_rows_are_made_with_it(record_type, to_arrow, data, number):
    few = data.draw(st.lists(records(record_type), min_size=1, max_size=4))
    which = [n % len(few) for n in range(number)]
    alone = pa.concat_tables([to_arrow([record]) for record in few])
    assert to_arrow([few[n] for n in which]).equals(alone.take(which))


@given(st.lists(records(Trace), max_size=3))
@settings(max_examples=10, deadline=None)
def test_every_table_has_its_declared_schema(traces):
    assert traces_to_arrow(traces, places(len(traces))).schema == table_specs()["traces"].schema


def test_logprobs_come_back_to_the_last_bit():
    logprobs = (-0.1, -1e-300, -(2.0**-52))
    (back,) = from_arrow(
        Trace, traces_to_arrow([make_trace(behavior_logprobs=logprobs)], places(1))
    )
    assert [x.hex() for x in back.behavior_logprobs] == [x.hex() for x in logprobs]


def test_no_token_of_a_user_without_training_consent_is_stored():
    trace = make_trace(
        train_consent=False,
        prompt_token_ids=(987_654,),
        completion_token_ids=(987_655,) * 3,
        sampling=Sampling(temperature=1.0, max_tokens=3, stop=("secret",)),
    )
    rows = traces_to_arrow([trace, make_trace()], places(2))
    for name in ("prompt_token_ids", "completion_token_ids", "behavior_logprobs", "token_bytes"):
        assert rows[name].is_null().to_pylist() == [True, False]
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, rows.schema).write_table(rows)
    stored = sink.getvalue().to_pybytes()
    assert b"secret" not in stored
    assert (987_654).to_bytes(8, "little") not in stored
    assert (987_655).to_bytes(8, "little") not in stored
    assert rows["policy_spans"].to_pylist()[0] == [{"policy_version": 1, "num_tokens": 3}]


def test_no_token_of_an_episode_without_training_consent_is_stored():
    episode = make_episode(train_consent=False, segments=(make_segment(), make_segment()))
    segments = episodes_to_arrow([episode])["segments"].to_pylist()[0]
    assert [s["completion_token_ids"] for s in segments] == [None, None]
    assert [s["credit"] for s in segments] == [None, None]
    assert [s["trace_id"] for s in segments] == ["t1", "t1"]


def test_rows_say_where_on_the_log_they_were():
    rows = feedback_to_arrow([make_feedback()], places(1, "feedback"))
    place = rows.select(["topic", "partition", "offset", "appended_at"]).to_pylist()
    assert place == [{"topic": "feedback", "partition": 1, "offset": 40, "appended_at": NOON_2024}]


def test_a_record_without_its_place_is_refused():
    with pytest.raises(ValueError, match="got 1 for 2"):
        traces_to_arrow([make_trace(), make_trace()], places(1))


def test_an_episode_row_names_its_trace():
    rows = episodes_to_arrow([make_episode(), make_episode(segments=())])
    assert rows["trace_id"].to_pylist() == ["t1", None]


def test_a_quarantined_episode_names_what_holds_it():
    rows = quarantined_to_arrow([make_episode(quarantine_ids=("q1", "q2"))])
    assert rows["quarantine_ids"].to_pylist() == [["q1", "q2"]]
    assert rows.schema == table_specs()["quarantine"].schema


def test_a_day_is_utc_and_a_forged_time_has_none():
    last_second = 1_720_051_199.0  # 2024-07-03 23:59:59 UTC
    times = [NOON_2024, last_second, last_second + 1, -1.0, float("inf"), float("nan"), 1e15]
    third, fourth = date(2024, 7, 3), date(2024, 7, 4)
    assert days(times).to_pylist() == [third, third, fourth, None, None, None, None]


def test_each_row_is_in_the_bucket_of_its_user():
    keys = ["u2", "u1", "u2", "u3"]
    rows = feedback_to_arrow(
        [make_feedback(user_key=key) for key in keys], places(len(keys), "feedback")
    )
    assert rows["user_bucket"].to_pylist() == [user_bucket(key) for key in keys]


def test_users_spread_over_all_sixteen_buckets():
    assert {user_bucket(f"user-{n}") for n in range(400)} == set(range(16))
    assert user_bucket("user-1") == user_bucket("user-1")


def test_a_number_beyond_64_bits_names_its_records_and_no_other():
    traces = [make_trace(), make_trace(turn=2**63), make_trace(prompt_token_ids=(2**64,))]
    with pytest.raises(UnstorableRecords) as refused:
        traces_to_arrow(traces, places(3))
    assert refused.value.indices == [1, 2]


def test_a_ledger_is_one_line_an_outcome():
    ledger = Ledger(
        process="signals", at=NOON_2024, read={"traces": 3, "feedback": 0},
        outcomes={"traces": {"joined": 2, "orphan": 1}},
    )  # fmt: skip
    rows = ledgers_to_arrow([ledger]).select(["kind", "read", "outcome", "count"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("traces", 3, "joined", 2), ("traces", 3, "orphan", 1), ("feedback", 0, None, 0),
    ]  # fmt: skip
    assert ledgers_to_arrow([]).num_rows == 0


def test_a_row_written_before_a_field_existed_has_its_default():
    rows = traces_to_arrow([make_trace(tool_calls=(ToolCall(name=None, valid=False),))], places(1))
    old = rows.drop_columns(["tool_calls", "arm"])
    (trace,) = from_arrow(Trace, old)
    assert (trace.tool_calls, trace.arm) == ((), "live")
    (whole,) = from_arrow(Trace, rows)
    assert whole.tool_calls == (ToolCall(name=None, valid=False),)
