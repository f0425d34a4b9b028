"""The body of a report: JSON or a refusal in words, whatever bytes come."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.errors import Refused
from serving.feedback.body import event_of, parsed
from tests.serving.any_json import anything
from tests.serving.feedback.vocabulary import FIELDS, make_typed


def _read(body: bytes) -> Refused | None:
    """Why the body is no event; None if it is one. Anything else than `Refused` fails the test."""
    try:
        event_of(parsed(body))
    except Refused as refused:
        return refused
    return None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "expected JSON"),
        (b"\x1f\x8b\x08\x00gzip", "expected JSON, got: 'utf-8' codec"),
        (b'{"a": "\xff"}', "expected JSON"),
        (b"[1]", r"expected an object, got \[1\]"),
        (b"[[1], [2]]", "expected an object, got a list of 2"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' twice in one object"),
        (b'{"\\ud800": 1, "\\ud800": 2}', "twice in one object"),
        (b"[" * 100_000, "too deep a nesting"),
        (b'{"a": 1' + b"0" * 5_000 + b"}", "expected JSON"),
        (b"a=1&b=2", "expected JSON"),
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(Refused, match=words):
        parsed(body)


@pytest.mark.parametrize("body", [b"\xef\xbb\xbf{}", b" {} ", b'{"a": {"b": 1}, "c": {"b": 2}}'])
def test_what_is_one_is_read(body: bytes) -> None:
    assert isinstance(parsed(body), dict)


def test_a_deep_value_is_refused_without_being_printed() -> None:
    deep: object = 1
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(Refused, match=r"value: .*got an object$"):
        event_of(make_typed("feedback.vote", value=deep))
    with pytest.raises(Refused, match=r"value: .*got a list of 1$"):
        event_of(make_typed("feedback.vote", value=[deep]))


def test_a_number_too_long_to_print_is_refused() -> None:
    with pytest.raises(Refused, match="client_seq"):
        event_of(make_typed("heartbeat", client_seq=10**5_000))


@given(
    name=st.sampled_from(sorted(FIELDS)),
    field=st.sampled_from(sorted({"event_id", "client_seq", "client_time", "type", "trace_id"}
                                 | {field for fields in FIELDS.values() for field in fields})),
    value=anything,
)  # fmt: skip
def test_any_value_of_any_field_is_taken_or_refused(name: str, field: str, value: object) -> None:
    refused = _read(json.dumps(make_typed(name) | {field: value}).encode())
    assert refused is None or refused.status == 400


@given(body=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode()))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    refused = _read(body)
    assert refused is not None
    assert refused.status == 400
    assert refused.response().body
