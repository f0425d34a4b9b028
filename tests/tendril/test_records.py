"""Records: what is written is read back, and what is not a record is refused as such."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tendril.records import (
    RECORD_TYPES,
    TYPE_BY_TOPIC,
    Episode,
    EvalReport,
    InvalidRecord,
    Ledger,
    PolicySpan,
    Record,
    Trace,
    decode,
    encode,
)
from tests.builders import make_episode, make_feedback, make_segment, make_trace
from tests.tendril.record_strategies import records

FEW = settings(max_examples=8)
any_type = pytest.mark.parametrize("record_type", RECORD_TYPES, ids=lambda t: t.__name__)


def _with_fields(record: Record, **fields: Any) -> bytes:
    tree = msgspec.msgpack.decode(encode(record))
    return msgspec.msgpack.encode(tree | fields)


@any_type
@FEW
@given(data=st.data())
def test_a_record_is_read_back_as_it_was_written(
    record_type: type[Record], data: st.DataObject
) -> None:
    record = data.draw(records(record_type))
    value = encode(record)
    again = decode(record_type, value)
    assert again == record
    assert encode(again) == value  # tuples stayed tuples, floats kept their bits


@any_type
@FEW
@given(data=st.data())
def test_torn_and_foreign_bytes_are_invalid_records_and_nothing_else(
    record_type: type[Record], data: st.DataObject
) -> None:
    value = encode(data.draw(records(record_type)))
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(InvalidRecord, match=record_type.__name__):
        decode(record_type, value[:cut])
    garbage = data.draw(st.binary(max_size=200))
    flipped = bytearray(value)
    flipped[cut] ^= data.draw(st.integers(1, 255))
    for other in (garbage, bytes(flipped), value + b"\x00"):
        try:
            decode(record_type, other)
        except InvalidRecord:
            continue
        assert other == bytes(flipped)  # a flipped digit of a number is still a record


@any_type
def test_another_type_of_record_is_invalid(record_type: type[Record]) -> None:
    other = make_feedback() if record_type is Trace else make_trace()
    with pytest.raises(InvalidRecord):
        decode(record_type, encode(other))


def test_deep_nesting_is_an_invalid_record() -> None:
    with pytest.raises(InvalidRecord):
        decode(Trace, b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0")


def test_unknown_fields_of_a_newer_minor_writer_are_ignored() -> None:
    trace = make_trace()
    assert decode(Trace, _with_fields(trace, colour="red", nested={"a": [1]})) == trace


def test_a_newer_schema_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidRecord, match="Trace: expected schema <= 1, got 2"):
        decode(Trace, _with_fields(make_trace(), schema=2))


def test_every_type_has_a_topic_of_its_own() -> None:
    assert len(TYPE_BY_TOPIC) == len(RECORD_TYPES)
    assert TYPE_BY_TOPIC["traces"] is Trace


@pytest.mark.parametrize("odd", [math.inf, -math.inf])
def test_infinities_survive_the_log(odd: float) -> None:
    trace = make_trace(behavior_logprobs=(odd, -0.2, -0.3))
    assert decode(Trace, encode(trace)) == trace


def test_nan_survives_the_log_for_its_reader_to_refuse() -> None:
    again = decode(Episode, encode(make_episode(reward=math.nan)))
    assert again.reward is not None
    assert math.isnan(again.reward)


@pytest.mark.parametrize(
    ("field", "wrong", "words"),
    [
        ("behavior_logprobs", (-0.1,), "got 1 behavior_logprobs for 3 completion tokens"),
        ("token_bytes", (1, 2, 3, 4), "got 4 token_bytes for 3 completion tokens"),
        ("policy_spans", (), "got 0 tokens in policy_spans for 3 completion tokens"),
        (
            "policy_spans",
            (PolicySpan(policy_version=1, num_tokens=2),),
            "got 2 tokens in policy_spans for 3",
        ),
    ],
)
def test_a_trace_of_unequal_lengths_says_which(field: str, wrong: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf"trace t7: {words}"):
        make_trace(trace_id="t7", **{field: wrong})
    tree = msgspec.to_builtins(wrong)
    with pytest.raises(InvalidRecord, match=words):
        decode(Trace, _with_fields(make_trace(), **{field: tree}))


@pytest.mark.parametrize("field", ["loss_mask", "behavior_logprobs", "credit"])
def test_an_episode_of_unequal_lengths_says_which(field: str) -> None:
    with pytest.raises(ValueError, match=f"episode e7, trace t1: got 0 {field} for 2 completion"):
        make_episode(episode_id="e7", segments=(make_segment(**{field: ()}),))


def test_records_are_frozen() -> None:
    trace = make_trace()
    with pytest.raises(AttributeError):
        trace.session_id = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        trace.sampling.seed = 1  # type: ignore[misc]


def test_sequences_are_tuples_after_decoding() -> None:
    again = decode(Episode, encode(make_episode()))
    assert type(again.segments) is tuple
    assert type(again.segments[0].loss_mask) is tuple
    assert again.segments[0].loss_mask == (True, True)


def test_an_unknown_feedback_type_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="type"):
        decode(type(make_feedback()), _with_fields(make_feedback(), type="suggestion.liked"))


def test_a_ledger_balances_when_each_read_record_has_one_outcome() -> None:
    read = {"episodes": 3}
    balanced = Ledger(
        process="learner", at=0.0, read=read, outcomes={"episodes": {"trained": 2, "pending": 1}}
    )
    assert balanced.balanced
    assert not msgspec.structs.replace(balanced, outcomes={}).balanced


def test_a_report_without_checks_is_inconclusive() -> None:
    assert EvalReport(policy_version=2, against_version=1, checks=()).verdict == "inconclusive"
