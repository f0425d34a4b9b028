"""The life of a suggestion: what is sent, and what cannot happen."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.feedback.body import event_of
from signals.edit import CHAT_PLACES
from signals.outcome import fold
from tendril.records import Feedback
from tendril_client import Event, IllegalLifecycle, Outbox, Suggestion, byte_span, measure_retention
from tendril_client.suggestion import Clock
from tests.serving.clients.fake_server import FakeTendril

Step = Callable[[Suggestion], str]
STEPS: list[Step] = [
    lambda s: s.shown(visible_ms=400),
    lambda s: s.accepted(),
    lambda s: s.accepted_partially(share=0.5),
    lambda s: s.accepted_partially(span=(0, 3)),
    lambda s: s.rejected(),
    lambda s: s.ignored(),
    lambda s: s.undone(),
    lambda s: s.redone(),
    lambda s: s.edited(),
    lambda s: s.retained(30, 0.5),
    lambda s: s.copied(share=1.0),
    lambda s: s.followed_up(-1.0),
    lambda s: s.regenerated(),
    lambda s: s.stopped(),
    lambda s: s.voted(-1),
    lambda s: s.rated(2, scale=(1, 5)),
    lambda s: s.suppressed("unsure"),
    lambda s: s.reverted("git"),
    lambda s: s.committed(3, 10),
    lambda s: s.not_observable(30, "document_closed"),
    lambda s: s.retained(300, measure_retention("some text", "some")),
    lambda s: s.hunk_accepted("h1"),
    lambda s: s.hunk_rejected("h2"),
    lambda s: s.inserted(),
    lambda s: s.tool_denied("call_1", reason="unsafe"),
    lambda s: s.session_ended(),
]


@pytest.fixture
def outbox() -> Iterator[Outbox]:
    with Outbox() as outbox:
        yield outbox


def make_suggestion(outbox: Outbox, fake: FakeTendril, clock: Clock | None = None) -> Suggestion:
    return Suggestion(
        trace_id="t1", policy_version=7, session_id="s1", endpoint=f"{fake.url}/v1/feedback",
        feedback_token="token", outbox=outbox, clock=clock or Clock(),
    )  # fmt: skip


def test_each_method_sends_its_event(fake, outbox):
    suggestion = make_suggestion(outbox, fake, Clock(lambda: 1_000.5, lambda: 12.25))
    suggestion.shown(visible_ms=900)
    suggestion.accepted_partially(span=(0, 4))
    event_id = suggestion.accepted()
    suggestion.undone()
    suggestion.redone()
    suggestion.edited(span=(1, 2))
    suggestion.retained(30, 0.75)
    suggestion.copied(share=0.5)
    suggestion.followed_up()
    suggestion.regenerated()
    suggestion.stopped()
    suggestion.voted(1)
    assert outbox.flush()
    assert fake.types == [
        "suggestion.shown", "suggestion.accepted_partially", "suggestion.accepted", "edit.undone",
        "edit.redone", "edit.applied", "retention.measured", "content.copied", "user.followed_up",
        "response.regenerated", "response.stopped", "feedback.vote",
    ]  # fmt: skip
    assert fake.events[2] == {
        "event_id": event_id, "trace_id": "t1", "type": "suggestion.accepted",
        "client_seq": 3, "client_time": 1_000.5, "client_monotonic_s": 12.25,
        "feedback_token": "token",
    }  # fmt: skip
    assert [event["client_seq"] for event in fake.events] == list(range(1, 13))
    assert len({event["event_id"] for event in fake.events}) == 12


@pytest.mark.parametrize(
    "steps",
    [
        ["accepted"],
        ["rejected"],
        ["ignored"],
        ["undone"],
        ["shown", "accepted", "rejected"],
        ["shown", "accepted", "ignored"],
        ["shown", "accepted", "shown"],
        ["shown", "rejected", "accepted"],
        ["shown", "ignored", "rejected"],
        ["shown", "rejected", "undone"],
        ["shown", "accepted", "undone", "undone"],
        ["shown", "accepted", "undone", "accepted"],
        ["shown", "accepted", "redone"],
        ["shown", "edited"],
    ],
)
def test_an_impossible_event_raises_and_is_not_sent(fake, outbox, steps):
    suggestion = make_suggestion(outbox, fake)
    for step in steps[:-1]:
        getattr(suggestion, step)()
    with pytest.raises(IllegalLifecycle, match="trace t1"):
        getattr(suggestion, steps[-1])()
    assert outbox.flush()
    assert len(fake.events) == len(steps) - 1


def test_values_out_of_range_raise(fake, outbox):
    suggestion = make_suggestion(outbox, fake)
    suggestion.shown()
    with pytest.raises(TypeError):
        suggestion.accepted_partially()
    with pytest.raises(TypeError):
        suggestion.accepted_partially(span=(0, 1), share=0.5)
    suggestion.accepted()
    with pytest.raises(ValueError, match="share"):
        suggestion.retained(30, 1.5)


def test_a_span_counts_bytes():
    assert byte_span("é = 1", 0, 3) == (0, 4)
    assert byte_span("a\N{SNOWMAN}b", 1, 2) == (1, 4)


class KeptOutbox(Outbox):
    """Keeps what was put, and sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Event] = []

    def put(self, event: Event, endpoint: str) -> None:
        self.kept.append(event)


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptOutbox]:
    with KeptOutbox() as outbox:
        yield outbox


@given(steps=st.lists(st.sampled_from(STEPS), max_size=12))
def test_whatever_the_client_lets_through_is_valid_to_the_server(kept, steps):
    kept.kept.clear()
    suggestion = Suggestion(
        trace_id="t1", policy_version=1, session_id="s1", endpoint="", feedback_token=None,
        outbox=kept,
    )  # fmt: skip
    for step in steps:
        with contextlib.suppress(IllegalLifecycle):
            step(suggestion)
    received = [event_of(json.loads(event.to_json())) for event in kept.kept]
    envelope: dict[str, Any] = {
        "session_id": "s1",
        "tenant": "acme",
        "user_key": "u1",
        "ingested_at": 1.0,
    }
    events = [
        Feedback(**envelope, **event.model_dump(exclude={"feedback_token", "session_id", "user"}))
        for event in received
    ]
    assert fold(events, shown_bytes=10, places=CHAT_PLACES).invalid == []
