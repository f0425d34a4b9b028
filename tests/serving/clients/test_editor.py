"""The example editor: the real language server over stdio, and what it reports of each outcome."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from tendril_editor.place import Change, Place, line_changes, smallest
from tests.serving.clients.editor_on_test_clock import ADVANCE
from tests.serving.clients.fake_server import TEXT, FakeTendril, fake_tendril

BEFORE = "é = 1\ndef f(value):\n   "
LINE, COLUMN = 2, 3  # where BEFORE ends
SHOWN = "suggestion.shown"


class Editor:
    """What a person does in one document."""

    def __init__(self, client: LanguageClient, name: str) -> None:
        self.client, self.uri, self.version = client, f"file:///{name}.py", 1

    def open(self) -> None:
        item = types.TextDocumentItem(self.uri, "python", self.version, BEFORE)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    async def complete(self, column: int = COLUMN) -> str:
        """Ask at a column of the last line."""
        answer = await self.client.text_document_inline_completion_async(
            types.InlineCompletionParams(
                context=types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic),
                text_document=types.TextDocumentIdentifier(self.uri),
                position=types.Position(LINE, column),
            )
        )
        assert isinstance(answer, types.InlineCompletionList)
        return "".join(str(item.insert_text) for item in answer.items)

    def replace(self, start: int, end: int, text: str) -> None:
        """Columns [start, end) of the last line become `text`."""
        place = types.Range(types.Position(LINE, start), types.Position(LINE, end))
        self._change(types.TextDocumentContentChangePartial(text=text, range=place))

    def insert(self, text: str, column: int = COLUMN) -> None:
        self.replace(column, column, text)

    def rewrite(self, text: str) -> None:
        self._change(types.TextDocumentContentChangeWholeDocument(text))

    def _change(self, change: types.TextDocumentContentChangeEvent) -> None:
        self.version += 1
        document = types.VersionedTextDocumentIdentifier(self.version, self.uri)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    async def reject(self) -> None:
        await self.client.workspace_execute_command_async(
            types.ExecuteCommandParams("tendril.reject", [self.uri])
        )

    def close(self) -> None:
        document = types.TextDocumentIdentifier(self.uri)
        self.client.text_document_did_close(types.DidCloseTextDocumentParams(document))

    def wait(self, seconds: float) -> None:
        self.client.protocol.notify(ADVANCE, {"seconds": seconds})


Scenario = Callable[[Editor], Awaitable[None]]


async def accepted_and_kept(editor: Editor) -> None:
    assert await editor.complete() == TEXT
    editor.wait(1.5)
    editor.insert(TEXT)
    editor.wait(30)
    editor.replace(0, 0, "# moved: ")  # the measured place goes with the text
    editor.wait(270)


async def accepted_by_replacing_the_line(editor: Editor) -> None:
    await editor.complete()
    editor.replace(0, COLUMN, "   " + TEXT)


async def accepted_word_by_word_in_part(editor: Editor) -> None:
    await editor.complete()
    editor.insert(" return")
    editor.insert(" x", COLUMN + len(" return"))


async def accepted_word_by_word_to_the_end(editor: Editor) -> None:
    await editor.complete()
    editor.insert(" return")
    editor.insert(" value", COLUMN + len(" return"))
    editor.wait(30)


async def rejected(editor: Editor) -> None:
    await editor.complete()
    editor.wait(0.5)
    await editor.reject()
    editor.insert(TEXT)  # by hand, later


async def typed_over(editor: Editor) -> None:
    await editor.complete()
    editor.wait(2)
    editor.insert("x")


async def typed_along_then_accepted(editor: Editor) -> None:
    await editor.complete()
    editor.insert(" ")
    editor.insert("r", COLUMN + 1)
    editor.insert("eturn value", COLUMN + 2)


async def replaced_by_the_next(editor: Editor) -> None:
    await editor.complete()
    await editor.complete()


async def undone_and_redone(editor: Editor) -> None:
    await editor.complete()
    editor.insert(TEXT)
    editor.replace(COLUMN, COLUMN + len(TEXT), "")
    editor.wait(30)
    editor.insert(TEXT)


async def half_deleted(editor: Editor) -> None:
    await editor.complete()
    editor.insert(TEXT)
    editor.replace(COLUMN, COLUMN + len(" return"), "")
    editor.wait(30)


async def formatted_as_a_whole(editor: Editor) -> None:
    await editor.complete()
    editor.insert(TEXT)
    editor.rewrite("import os\n\n" + BEFORE + TEXT + "\n")
    editor.wait(30)


async def closed_before_the_measurement(editor: Editor) -> None:
    await editor.complete()
    editor.insert(TEXT)
    editor.close()
    editor.wait(30)


def outcome(*events: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A display, and what follows it."""
    return [{"type": SHOWN}, *({"type": name, **fields} for name, fields in events)]


def kept(horizon_s: float, share: float) -> tuple[str, dict[str, Any]]:
    return "retention.measured", {"horizon_s": horizon_s, "value": pytest.approx(share)}


ACCEPTED = ("suggestion.accepted", {"visible_ms": 0.0})
SCENARIOS: dict[Scenario, list[dict[str, Any]]] = {
    accepted_and_kept: outcome(
        ("suggestion.accepted", {"visible_ms": 1500.0}), kept(30, 1.0), kept(300, 1.0)
    ),
    accepted_by_replacing_the_line: outcome(ACCEPTED),
    accepted_word_by_word_in_part: outcome(
        ("suggestion.accepted_partially", {"span": [0, 7], "granularity": "word"})
    ),
    accepted_word_by_word_to_the_end: outcome(
        ("suggestion.accepted_partially", {"span": [0, 7]}), ACCEPTED, kept(30, 1.0)
    ),
    rejected: outcome(("suggestion.rejected", {"reason": "escape", "visible_ms": 500.0})),
    typed_over: outcome(("suggestion.ignored", {"reason": "typed_over", "visible_ms": 2000.0})),
    typed_along_then_accepted: outcome(ACCEPTED),
    replaced_by_the_next: outcome(("suggestion.ignored", {"reason": "replaced"})),
    undone_and_redone: outcome(ACCEPTED, ("edit.undone", {}), kept(30, 0.0), ("edit.redone", {})),
    # 6 of 13 characters stay: "value" with its space.
    half_deleted: outcome(ACCEPTED, kept(30, 6 / 13 * 6 / 13)),
    formatted_as_a_whole: outcome(ACCEPTED, kept(30, 1.0)),
    closed_before_the_measurement: outcome(
        ACCEPTED, ("retention.measured", {"horizon_s": 30.0, "reason": "document_closed"})
    ),
}


async def play(fake: FakeTendril) -> dict[Scenario, str]:
    """Play all scenarios in one server; returns the trace of each."""
    client = LanguageClient("test", "1")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    module = "tests.serving.clients.editor_on_test_clock"
    command = [sys.executable, "-m", module, "--base-url", f"{fake.url}/v1"]
    await client.start_io(*command, env=environment)
    answer = await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
    assert answer.capabilities.inline_completion_provider
    client.initialized(types.InitializedParams())
    traces = {}
    for scenario in SCENARIOS:
        editor = Editor(client, scenario.__name__)
        editor.open()
        traces[scenario] = f"trace-{fake.num_replies + 1}"
        await scenario(editor)
        editor.wait(301)  # nothing of this one is left for the next
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()
    return traces


@pytest.fixture(scope="module")
def reports() -> Iterator[dict[Scenario, list[dict[str, Any]]]]:
    """The events of each scenario."""
    with fake_tendril() as fake:
        traces = asyncio.run(asyncio.wait_for(play(fake), timeout=60))
        yield {
            scenario: [event for event in fake.events if event["trace_id"] == trace]
            for scenario, trace in traces.items()
        }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_what_a_user_does_is_what_is_reported(reports, scenario):
    expected = SCENARIOS[scenario]
    seen = reports[scenario][: len(expected)]
    assert [event["type"] for event in seen] == [event["type"] for event in expected]
    for event, fields in zip(seen, expected, strict=True):
        assert {name: event[name] for name in fields} == fields


def test_nothing_but_late_measurements_follows_an_outcome(reports):
    for scenario, expected in SCENARIOS.items():
        later = {event["type"] for event in reports[scenario][len(expected) :]}
        assert later <= {"retention.measured"}, scenario


DOCUMENTS = st.text("ab\n", max_size=12)


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, Place, Change]:
    document = draw(DOCUMENTS)
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(document))] * 2)))
    first, last = sorted(draw(st.tuples(*[st.integers(0, len(document))] * 2)))
    return document, Place(first, last), Change(start, end, draw(st.text("ab", max_size=4)))


def applied(document: str, change: Change) -> str:
    return document[: change.start] + change.text + document[change.end :]


@given(edits())
def test_a_place_holds_what_it_held_but_for_what_the_change_took(edit):
    document, place, change = edit
    before = place.read(document)
    cut_from, cut_to = max(change.start, place.start), min(change.end, place.end)
    left = place.start, place.end
    place.follow(change)
    after = place.read(applied(document, change))
    if cut_from >= cut_to and not left[0] < change.start < left[1]:  # outside, or at an edge
        assert after == before
    else:
        kept_head = document[left[0] : max(cut_from, left[0])]
        kept_tail = document[max(cut_to, cut_from) : left[1]]
        assert after == kept_head + change.text + kept_tail


@given(edits())
def test_the_smallest_change_does_the_same(edit):
    document, _, change = edit
    small = smallest(change, document)
    assert applied(document, small) == applied(document, change)
    assert small.end - small.start <= change.end - change.start
    assert smallest(small, document) == small


@given(DOCUMENTS, DOCUMENTS)
def test_a_rewritten_document_is_a_list_of_changes(before, after):
    document = before
    for change in line_changes(before, after):
        document = applied(document, change)
    assert document == after
