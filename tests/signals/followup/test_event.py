"""The event of a follow-up: its class and where the text is, and no word of it."""

from typing import Any

import msgspec
import pytest

from signals.followup.event import followed_up
from tests.builders import make_trace

BEFORE = make_trace(trace_id="t1", route="chat", content_consent=True)


def event_of(**overrides: Any):
    fields = {"trace_id": "t2", "previous_trace_id": "t1", "content_consent": True}
    after = make_trace(route="chat", **(fields | overrides))
    return followed_up(
        BEFORE, after, request="sort it", reply="Sorted.", followup="thanks, that works",
        client_seq=3,
    )  # fmt: skip


def test_the_event_holds_the_class_and_no_word() -> None:
    event = event_of()
    assert (event.reason, event.trace_id, event.text_ref) == ("satisfied", "t1", "t2")
    assert b"thanks" not in msgspec.msgpack.encode(event)
    assert event.event_id == event_of().event_id


@pytest.mark.parametrize(
    "overrides",
    [{"content_consent": False}, {"train_consent": False}, {"user_key": "u2"},
     {"tenant": "other"}, {"session_id": "s2"}, {"previous_trace_id": None}],
)  # fmt: skip
def test_without_consent_or_across_people_there_is_no_event(overrides: dict[str, Any]) -> None:
    assert event_of(**overrides) is None
