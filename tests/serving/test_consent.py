"""Consent at ingress: who said no is not recorded word for word, on any node, in any file."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from serving.api.app import create_app
from serving.build import build_node
from serving.node import ServingNode
from serving.process import follow_consents
from serving.recorder import as_agreed, without_content
from serving.text import TextCodec
from tendril.consent import Consents, person_of
from tendril.log import SqliteLog
from tendril.records import Consent, Feedback, Record, Trace, decode
from tests.builders import make_trace
from tests.serving.live_server import KEY, make_settings
from tests.serving.scripted import Line, ScriptedEngine

PROMPT = "def forgettable_words(value):"
REPLY = "return value.unforgotten"
STOP = "unlikely-stop-word"
USER = "ada-lovelace-1815"


@contextlib.contextmanager
def serving_node(folder: Path, checkpoint: Path, log: SqliteLog) -> Iterator[ServingNode]:
    codec = TextCodec(checkpoint)
    engine = ScriptedEngine(codec, lambda request, index: Line(REPLY))
    node = build_node(make_settings(folder, checkpoint), log, engine, codec)
    yield node
    node.spool.close()
    node.consents.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.db")
    yield log
    log.close()


@pytest.fixture
def node(tmp_path: Path, checkpoint: Path, log: SqliteLog) -> Iterator[ServingNode]:
    with serving_node(tmp_path, checkpoint, log) as node:
        yield node


def post(node: ServingNode, path: str, body: dict[str, Any], **headers: str) -> Any:
    client = TestClient(create_app(node), headers={"authorization": f"Bearer {KEY}"})
    reply = client.post(path, json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply


def ask(node: ServingNode, **headers: str) -> str:
    """The id of the trace that a request of ada's left."""
    body = {"model": "tendril", "prompt": PROMPT, "max_tokens": 40, "user": USER, "stop": [STOP]}
    trace_id: str = post(node, "/v1/completions", body, **headers).headers["x-tendril-trace-id"]
    return trace_id


def decide(node: ServingNode, event_id: str, **fields: Any) -> None:
    event = {"event_id": event_id, "user": USER, "client_seq": 1, "client_time": 1.0} | fields
    post(node, "/v1/feedback", event)


def logged(node: ServingNode, log: SqliteLog, record_type: type[Record]) -> list[Any]:
    while node.spool.depth:
        time.sleep(0.01)
    reader = log.reader(f"test-{time.monotonic_ns()}", [record_type.TOPIC])
    records = [decode(record_type, row.value) for row in reader.poll(1_000, 0.0)]
    reader.close()
    return records


def trace_of(node: ServingNode, log: SqliteLog, trace_id: str) -> Trace:
    found: Trace = next(t for t in logged(node, log, Trace) if t.trace_id == trace_id)
    return found


def test_a_no_holds_from_the_next_request_on_until_a_yes(node: ServingNode, log: SqliteLog) -> None:
    before = trace_of(node, log, ask(node))
    decide(node, "no", type="consent.changed", train_consent=False)
    during = trace_of(node, log, ask(node))
    decide(node, "yes", type="consent.changed", train_consent=True)
    after = trace_of(node, log, ask(node))
    assert [t.train_consent for t in (before, during, after)] == [True, False, True]
    assert before.completion_token_ids == after.completion_token_ids != ()
    assert (during.prompt_token_ids, during.completion_token_ids) == ((), ())
    assert during.untrainable == "no_consent"


def test_a_decision_reaches_the_log_with_its_event_once(node: ServingNode, log: SqliteLog) -> None:
    for _ in range(2):
        decide(node, "no", type="consent.changed", train_consent=False, consent_version="v2")
    [consent] = logged(node, log, Consent)
    [event] = logged(node, log, Feedback)
    assert consent.person == person_of(event.tenant, event.user_key)
    assert (consent.train, consent.content, consent.consent_version) == (False, None, "v2")
    ledger = node.spool.ledger(0.0)
    assert ledger.balanced
    assert ledger.outcomes["feedback"] == {"logged": 1, "spooled": 0, "duplicate": 1}


def test_another_node_knows_of_it_from_the_log(
    node: ServingNode, log: SqliteLog, tmp_path: Path, checkpoint: Path
) -> None:
    with serving_node(tmp_path / "other", checkpoint, log) as other:
        tenant, user_key = "t", "u"  # of one who is known to both by the same secret
        person = person_of(tenant, user_key)
        assert other.consents.consents.trains_now(tenant, user_key, asked=True)
        log.append([(person, Consent(person=person, train=False, at=1.0))])
        follow_consents(other)
        assert not other.consents.consents.trains_now(tenant, user_key, asked=True)
    with serving_node(tmp_path / "third", checkpoint, log) as third:  # from its start on
        assert not third.consents.consents.trains_now(tenant, user_key, asked=True)


def test_who_asks_to_be_deleted_is_forgotten_by_the_session_index(
    node: ServingNode, log: SqliteLog
) -> None:
    ask(node)
    assert len(node.sessions) == 1
    decide(node, "gone", type="user.deletion_requested")
    while not logged(node, log, Consent):
        time.sleep(0.01)
    follow_consents(node)
    assert len(node.sessions) == 0
    assert not trace_of(node, log, ask(node)).train_consent


def test_before_the_consents_are_known_nobody_has_agreed(node: ServingNode, log: SqliteLog) -> None:
    node.consents.is_ready = False
    trace = trace_of(node, log, ask(node, **{"x-tendril-content-consent": "true"}))
    assert (trace.train_consent, trace.content_consent) == (False, False)


def test_content_needs_a_yes_and_ends_with_a_no(node: ServingNode, log: SqliteLog) -> None:
    yes = {"x-tendril-content-consent": "true"}
    assert trace_of(node, log, ask(node, **yes)).content_consent
    assert not trace_of(node, log, ask(node)).content_consent
    decide(node, "no", type="consent.changed", content_consent=False)
    assert not trace_of(node, log, ask(node, **yes)).content_consent


def test_no_byte_of_content_is_in_any_file(
    node: ServingNode, log: SqliteLog, tmp_path: Path, checkpoint: Path
) -> None:
    """As text, or as the token ids that a trace would hold: words to whoever has the tokenizer."""
    codec = TextCodec(checkpoint)
    secrets = [text.encode() for text in (PROMPT, REPLY, STOP, USER)]
    as_ids = [msgspec.msgpack.encode(codec.encode(text))[1:] for text in (PROMPT, REPLY)]
    no = {"x-tendril-train-consent": "false"}
    trace = trace_of(node, log, ask(node, **no))
    assert found_in(tmp_path, [*secrets, *as_ids]) == []
    assert trace.latency.total_s > 0  # that it was served is known
    ask(node)
    assert logged(node, log, Trace)
    assert found_in(tmp_path, [as_ids[0]])  # with consent they are there: the search finds them


def found_in(folder: Path, needles: list[bytes]) -> list[tuple[str, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [(str(p), needle) for p in files for needle in needles if needle in p.read_bytes()]


def test_a_trace_without_content_is_still_a_trace() -> None:
    bare = without_content(make_trace())
    assert decode(Trace, msgspec.msgpack.encode(bare)) == bare


def test_a_no_while_a_reply_streams_counts_for_that_reply() -> None:
    trace, consents = make_trace(content_consent=True), Consents({})
    assert as_agreed(trace, consents) == trace
    no = Consent(person=person_of(trace.tenant, trace.user_key), train=False, content=False, at=1.0)
    consents.add(no, 1.0)
    bare = as_agreed(trace, consents)
    assert (bare.train_consent, bare.content_consent) == (False, False)
    assert bare.completion_token_ids == ()


def test_a_yes_that_comes_back_from_the_log_does_not_undo_the_no_behind_it() -> None:
    consents, person = Consents({}), person_of("acme", "ann")
    yes = Consent(person=person, train=True, at=1.0)
    no = Consent(person=person, train=False, at=2.0)
    for consent, at in ((yes, 1.0), (no, 2.0), (yes, 2.5), (no, 2.6)):
        consents.add(consent, at)
    assert consents.trains_now("acme", "ann", asked=True) is False
