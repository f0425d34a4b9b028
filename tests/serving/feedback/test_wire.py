"""The vocabulary: what each type needs, what it may have, and how the rest is refused."""

from pathlib import Path
from typing import Any, get_args

import jsonschema  # type: ignore[import-untyped]
import pytest

from serving.api.errors import Refused
from serving.feedback.body import event_of
from serving.feedback.wire import EVENT_BY_TYPE, json_schema
from tendril.records import Feedback, FeedbackType, decode, encode
from tests.serving.feedback.vocabulary import FIELDS, make_typed

ROOT = Path(__file__).parents[3]
TYPES = get_args(FeedbackType)
every_type = pytest.mark.parametrize("name", TYPES)


def _record(event: dict[str, Any]) -> Feedback:
    fields = event_of(event).model_dump(exclude={"feedback_token", "session_id", "user"})
    return Feedback(**fields, session_id="s", tenant="a", user_key="u", ingested_at=0.0)


def test_the_table_has_each_type_of_the_record_once() -> None:
    assert set(EVENT_BY_TYPE) == set(TYPES) == set(FIELDS)


def test_the_guide_for_clients_names_each_type() -> None:
    guide = (ROOT / "docs" / "feedback.md").read_text()
    assert [name for name in TYPES if f"`{name}`" not in guide] == []


@every_type
def test_every_field_of_an_event_reaches_the_record(name: str) -> None:
    sent = make_typed(name, surface="editor", client="lsp/1.0", schema=1)
    record = _record(sent)
    assert decode(Feedback, encode(record)) == record
    renamed = {"schema": "vocabulary", "version": "grader_version"}
    for field, value in sent.items():
        if field != "user":
            kept = getattr(record, renamed.get(field, field))
            assert kept == (tuple(value) if isinstance(value, list) else value)


@every_type
def test_no_client_names_a_policy_version_or_writes_prose(name: str) -> None:
    for field in ("policy_version", "policy_spans", "text", "comment", "tenant", "user_key"):
        with pytest.raises(Refused, match=f"{field}: expected no such field in '{name}'"):
            event_of(make_typed(name, **{field: 1}))
    with pytest.raises(Refused):
        event_of(make_typed(name, reason="I did not like it"))


@every_type
def test_the_published_schema_takes_what_the_service_takes(name: str) -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.validate(make_typed(name))
    assert not validator.is_valid(make_typed(name, policy_version=1))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("suggestion.shown", {"position": 3}, "expected position < slots, got 3 of 3"),
        ("suggestion.suppressed", {"reason": None}, "reason: Field required"),
        ("suggestion.accepted", {"value": 0.5}, "value: .*greater than or equal to 1, got 0.5"),
        ("suggestion.accepted", {"horizon_s": 3}, "horizon_s: expected no such field"),
        ("suggestion.accepted_partially", {"span": None}, "expected span or value"),
        ("suggestion.accepted_partially", {"span": [9, 3]}, "span: .*start <= end"),
        ("suggestion.accepted_partially", {"value": 1.5}, "value: .*got 1.5"),
        ("suggestion.accepted_partially", {"granularity": "page"}, "granularity"),
        ("hunk.accepted", {"hunk_id": None}, "hunk_id: Field required"),
        ("edit.reverted", {"method": "magic"}, "method: .*got 'magic'"),
        ("retention.measured", {"horizon_s": None}, "horizon_s: Field required"),
        ("retention.measured", {"value": None, "arc_chars": None}, "expected value, or no_revert"),
        ("retention.measured", {"arc_chars": 41}, "expected arc_chars <= total_chars, got 41 of 4"),
        ("content.copied", {"total_chars": None}, "expected num_chars and total_chars, or span"),
        ("content.copied", {"num_chars": 81}, "expected num_chars <= total_chars, got 81 of 80"),
        ("user.followed_up", {"text_ref": "please undo that"}, "text_ref"),
        ("feedback.vote", {"value": 0.5}, r"value: .*expected 1 \(up\).*got 0.5"),
        ("feedback.vote", {"value": None}, "value: Field required"),
        ("feedback.rating", {"scale_max": None}, "scale_max: Field required"),
        ("feedback.rating", {"value": 11}, "expected scale_min <= value .*value 11 on 1 to 10"),
        ("feedback.rating", {"value": 1, "scale_max": 1}, "scale_min < scale_max"),
        ("feedback.rating", {"value": True}, "value: .*got True"),
        ("grader.scored", {"version": None}, "version: Field required"),
        ("grader.scored", {"value": None}, "expected either value or error"),
        ("grader.scored", {"error": "timeout"}, "expected either value or error"),
        ("consent.changed", {"train_consent": None}, "expected train_consent or content_consent"),
        ("consent.changed", {"user": None}, "user: Field required"),
        ("user.deletion_requested", {"trace_id": "t1"}, "trace_id: expected no such field"),
        ("heartbeat", {"schema": 2}, "schema: .*got 2"),
        ("heartbeat", {"client_seq": "1"}, "client_seq: .*got '1'"),
        ("heartbeat", {"client_time": 10**400}, "client_time"),
        (
            "heartbeat",
            {"type": "trace.started"},
            "type: expected an event type among suggestion.shown, .*heartbeat.*'trace.started'",
        ),
        ("heartbeat", {"type": ["heartbeat"]}, "type: expected an event type"),
    ],
)
def test_what_a_type_cannot_be_is_refused_by_field(
    name: str, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        event_of(make_typed(name, **change))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("suggestion.accepted_partially", {"span": None, "value": 0.25}),
        ("retention.measured", {"value": None}),
        ("retention.measured", {"value": None, "no_revert": None, "reason": "file_deleted"}),
        ("content.copied", {"num_chars": None, "total_chars": None, "value": 0.5}),
        ("feedback.vote", {"value": 0.0}),
        ("grader.scored", {"value": None, "error": "timeout"}),
        ("session.ended", {"trace_id": None, "session_id": "s", "user": "ada"}),
    ],
)
def test_each_way_of_saying_it_is_taken(name: str, change: dict[str, Any]) -> None:
    assert _record(make_typed(name, **change)).type == name
