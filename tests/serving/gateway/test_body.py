"""What the gateway reads of a body: who, how much, which request; and never more than it may."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from starlette.types import Message

from serving.api.errors import Refused
from serving.gateway.body import (
    ClientGone,
    Identity,
    identity_of,
    parse_asked,
    read_body,
    reported_request,
    tokens_at_most,
)
from tests.serving.any_json import anything


def receive_from(messages: Iterable[Message]) -> Any:
    left = list(messages)

    async def receive() -> Message:
        if not left:
            await asyncio.sleep(60)
        return left.pop(0)

    return receive


def parts(*bodies: bytes) -> list[Message]:
    last = len(bodies) - 1
    return [
        {"type": "http.request", "body": body, "more_body": i < last}
        for i, body in enumerate(bodies)
    ]


def read(messages: Iterable[Message], declared: bytes | None = None) -> bytes:
    return asyncio.run(read_body(receive_from(messages), declared, 10, 0.05))


def test_a_body_comes_in_pieces_up_to_the_limit() -> None:
    assert read(parts(b"01234", b"56789")) == b"0123456789"


@pytest.mark.parametrize("declared", [b"11", b"-1", b"x", b"9" * 40])
def test_a_declared_length_over_the_limit_or_none_is_refused_unread(declared: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read([], declared)
    assert refused.value.status == 413


def test_a_longer_body_than_the_limit_is_refused_whatever_it_declared() -> None:
    with pytest.raises(Refused, match="at most 10 bytes"):
        read(parts(b"01234", b"567890"), b"10")


def test_a_body_that_does_not_come_is_refused_in_time() -> None:
    with pytest.raises(Refused) as refused:
        read([{"type": "http.request", "body": b"0", "more_body": True}])
    assert refused.value.status == 408


def test_a_client_that_goes_is_no_refusal() -> None:
    with pytest.raises(ClientGone):
        read([{"type": "http.disconnect"}])


@pytest.mark.parametrize(
    ("body", "user_header", "session_header", "expected"),
    [
        ({"user": "u"}, b"", b"", Identity("u", "")),
        ({"safety_identifier": "s"}, b"", b"", Identity("s", "")),
        ({"user": "u", "safety_identifier": "s"}, b"h", b"", Identity("h", "")),
        ({"metadata": {"session_id": "m"}}, b"", b"", Identity("", "m")),
        ({"metadata": {"session_id": "m"}}, b"", b"h", Identity("", "h")),
        ({"user": 3, "metadata": [1]}, b"", b"", Identity("", "")),
        ({"user": "u" * 500}, b"", b"", Identity("u" * 128, "")),
    ],
)
def test_who_asks(
    body: dict[str, Any], user_header: bytes, session_header: bytes, expected: Identity
) -> None:
    asked = parse_asked(json.dumps(body).encode())
    assert identity_of(asked, user_header, session_header) == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 256),
        ({"max_tokens": 10}, 10),
        ({"max_completion_tokens": 20, "max_tokens": 10, "n": 3}, 60),
        ({"max_tokens": "many", "n": -4}, 256),
        ({"max_tokens": True}, 1),
        ({"max_tokens": "900", "n": "8"}, 7_200),
        ({"max_tokens": 10, "prompt": ["a", "b", "c"]}, 30),
        ({"max_tokens": 10, "prompt": [[5, 6], [7]]}, 20),
        ({"max_tokens": 10, "prompt": [5, 6, 7]}, 10),
    ],
)
def test_tokens_are_counted_before_they_are_spent(limits: dict[str, Any], expected: int) -> None:
    body = json.dumps(limits).encode()
    assert tokens_at_most(body, parse_asked(body)) == expected + len(body) // 4


def test_feedback_on_any_choice_of_a_request_is_about_that_request() -> None:
    single = json.dumps({"trace_id": "0197-a.3", "type": "x"}).encode()
    batch = json.dumps({"events": [{"trace_id": "0197-a"}]}).encode()
    assert reported_request(single, b"token=t") == reported_request(batch, b"") == "0197-a"
    assert reported_request(b"no json", b"token=t") == "token=t"


@given(anything)
def test_no_body_breaks_the_reading(content: Any) -> None:
    body = json.dumps(content).encode()
    asked = parse_asked(body)
    assert tokens_at_most(body, asked) >= 0
    assert len(identity_of(asked, b"", b"").user) <= 128
    assert isinstance(reported_request(body, b""), str)
