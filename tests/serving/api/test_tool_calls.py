"""Calls in a reply's text: read alike however the text is cut; what is no call stays content."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.tool_calls import Call, ToolCallReader, read_tool_calls
from tendril.records import ToolCall

NAMES = frozenset({"search", "run"})
SEARCH = '<tool_call>\n{"name": "search", "arguments": {"q": "ä"}}\n</tool_call>'
RUN = '<tool_call>{"name":"run"}</tool_call>'


def read(pieces: list[str], prefill: str = "") -> tuple[str, list[tuple[str, str]]]:
    """(content, calls)."""
    reader = ToolCallReader(NAMES, prefill)
    parts = [part for piece in pieces for part in reader.add(piece)]
    parts += reader.finish()
    content = "".join(part for part in parts if isinstance(part, str))
    return content, [(part.name, part.arguments) for part in parts if isinstance(part, Call)]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("plain  ", "plain  ", []),
        (SEARCH, "", [("search", '{"q": "ä"}')]),
        (f"I look.\n{SEARCH}\n{RUN}\n", "I look.", [("search", '{"q": "ä"}'), ("run", "{}")]),
        (f"{RUN} after", " after", [("run", "{}")]),
        ('<tool_call>{"name":"run","arguments":{}}', "", [("run", "{}")]),
        ("a <tool_call>{broken}</tool_call> b", "a <tool_call>{broken}</tool_call> b", []),
        ('<tool_call>{"name":"run","arguments":"x"}', '<tool_call>{"name":"run","arguments":"x"}',
         []),
        ('<tool_call>{"name":"","arguments":{}}', '<tool_call>{"name":"","arguments":{}}', []),
        ("a <tool_ca", "a <tool_ca", []),
        ("</tool_call>", "</tool_call>", []),
        (f"<tool_call>x</tool_call>{RUN}", "<tool_call>x</tool_call>", [("run", "{}")]),
    ],
)  # fmt: skip
def test_a_reply_is_content_and_calls(
    text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert read([text]) == (content, calls)
    assert read(list(text)) == (content, calls)


texts = st.lists(
    st.sampled_from(["<tool_call>", "</tool_call>", SEARCH, RUN, "<tool", " ", "\n", "x", "{}"]),
    max_size=6,
).map("".join)


@given(text=texts, data=st.data())
def test_however_the_text_is_cut_it_is_read_alike(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces) == read([text])
    num_read = len(read([text])[1])
    recorded = read_tool_calls(text, NAMES)
    assert sum(call.valid for call in recorded) == num_read
    assert all(json.loads(arguments) is not None for _, arguments in read([text])[1])


def test_a_prefilled_call_goes_on_where_the_prompt_ended() -> None:
    prefill = '<tool_call>\n{"name": "run", "arguments": '
    assert read(['{"x": 1', "}}\n</tool_call>"], prefill) == ("", [("run", '{"x": 1}')])
    assert read(["no thanks"], prefill) == ("no thanks", [])


def test_the_trace_tells_good_calls_from_bad_ones() -> None:
    text = f'{RUN}<tool_call>{{</tool_call><tool_call>{{"name":"made_up"}}</tool_call>'
    assert read_tool_calls(text, NAMES) == (
        ToolCall(name="run", valid=True),
        ToolCall(name=None, valid=False),
        ToolCall(name="made_up", valid=False),
    )
