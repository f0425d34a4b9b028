"""What is read of a request's messages: the same for each spelling, nothing for junk."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.history import History, history_of, text_digest
from tests.serving.any_json import anything

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _reply(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def _read(*messages: dict[str, Any], path: str = CHAT) -> History:
    history = history_of(path, {"input" if path == RESPONSES else "messages": list(messages)})
    assert history is not None
    return history


def test_what_a_reply_was_asked_is_what_its_own_request_asked() -> None:
    first = _read(_user("hi"))
    second = _read(_user("hi"), _reply("Hello!"), _user("go on"))
    third = _read(
        _user("hi"), _reply("Hello!"), _user("go on"), _reply(None),
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    )  # fmt: skip
    assert second.earlier == ((first.asked, text_digest("Hello!")),)
    assert third.earlier == ((second.asked, None), (first.asked, text_digest("Hello!")))
    assert first.opening == second.opening == third.opening == first.asked
    assert len({first.asked, second.asked, third.asked}) == 3


@pytest.mark.parametrize(
    "spelling",
    [
        [_user([{"type": "text", "text": "hi"}]), _reply("Hello!"), _user("go on")],
        [_user("hi"), _reply([{"type": "text", "text": " Hello!\n"}]), _user("go on")],
        [{"content": "hi", "role": "user", "id": 7}, _reply("Hello!"), _user("go on")],
        [{"role": "system", "content": "It is 9:41."}, _user("hi"), _reply("Hello!"),
         _user([{"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}])],
        [_reply("How can I help?"), _user("hi"), _reply("Hello!"), _user("go on")],
    ],
)  # fmt: skip
def test_clients_may_spell_it_differently(spelling: list[dict[str, Any]]) -> None:
    assert _read(*spelling) == _read(_user("hi"), _reply("Hello!"), _user("go on"))


@pytest.mark.parametrize(
    "other",
    [
        [_user("hi"), _reply("Hello!"), _user("go on!")],
        [_user("hi "), _reply("Hello!"), _user("go on")],
        [_user("hi"), _user("Hello!"), _user("go on")],
        [_user("higo on"), _reply("Hello!")],
        [_user([{"type": "image_url", "image_url": {"url": "hi"}}]), _reply("Hello!"),
         _user("go on")],
    ],
)  # fmt: skip
def test_what_was_said_matters(other: list[dict[str, Any]]) -> None:
    assert _read(*other).asked != _read(_user("hi"), _reply("Hello!"), _user("go on")).asked


def test_responses_and_messages_are_read_like_chats() -> None:
    chat = _read(_user("hi"), _reply("Hello!"), _user("go on"))
    items = [
        _user([{"type": "input_text", "text": "hi"}]),
        {"type": "reasoning", "summary": []},
        _reply([{"type": "output_text", "text": "Hello!"}]) | {"type": "message", "id": "m1"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        _user("go on"),
    ]
    assert _read(*items, path=RESPONSES) == chat
    blocks = [_user("hi"), _reply([{"type": "text", "text": "Hello!"}]), _user("go on")]
    assert _read(*blocks, path=MESSAGES) == chat
    assert history_of(RESPONSES, {"input": "hi"}) == _read(_user("hi"))
    outputs = [{"type": "function_call_output", "call_id": "c", "output": str(n)} for n in (1, 2)]
    assert _read(_user("a"), outputs[0], path=RESPONSES) != _read(
        _user("a"), outputs[1], path=RESPONSES
    )


def test_a_previous_response_says_more_than_the_new_input() -> None:
    body = {"input": "yes", "previous_response_id": "resp_1"}
    assert history_of(RESPONSES, body) == History(previous_response_id="resp_1")


@pytest.mark.parametrize(
    "messages", [None, [], {}, "hi", [1], [None], [["role", "user"]], [_user("a"), "b"]]
)
def test_messages_that_are_none_have_no_history(messages: Any) -> None:
    assert history_of(CHAT, {"messages": messages}) is None


def test_nesting_without_end_has_no_history() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    assert history_of(CHAT, {"messages": [_user(deep)]}) is None
    assert history_of(CHAT, {"messages": [_user([{"a": deep}])]}) is None


junk = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(
            st.dictionaries(
                st.sampled_from(["role", "content", "type", "tool_call_id", "output"]),
                anything | st.sampled_from(["user", "assistant", "\ud800"]),
            ) | anything,
            max_size=4,
        ) | anything,
        "input": anything,
        "previous_response_id": anything,
    },
)  # fmt: skip


@given(
    path=st.sampled_from([CHAT, MESSAGES, RESPONSES, "/v1/completions", "/v1/nothing"]),
    body=junk | anything,
)
def test_junk_is_read_or_not_and_nothing_breaks(path: str, body: Any) -> None:
    history = history_of(path, body)
    assert history == history_of(path, json.loads(json.dumps(body)))
