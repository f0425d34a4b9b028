"""The outbox: every event arrives once, or is given up for a reason that was told."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tenacity import RetryCallState, Retrying, wait_fixed

from tendril_client import Drop, Event, Outbox
from tendril_client.delivery import BatchRefused, TryLater, post, retry_after_s
from tendril_client.outbox import MAX_RETRY_AFTER_S, next_try_s
from tendril_client.pending import PendingEvent, PendingEvents
from tests.serving.clients.fake_server import Answer, FakeTendril, refuse, wait_for


def make_event(number: int = 1, **overrides: Any) -> Event:
    fields: dict[str, Any] = {
        "event_id": f"e{number}", "trace_id": "t1", "type": "suggestion.shown",
        "client_seq": number, "client_time": 1_000.0, "client_monotonic_s": 5.0,
        "feedback_token": None, "details": {},
    }  # fmt: skip
    return Event(**(fields | overrides))


def make_outbox(path: Path | None = None, **overrides: Any) -> Outbox:
    """One that retries soon."""
    return Outbox(path, **({"backoff_s": 0.01, "max_backoff_s": 0.05} | overrides))


def endpoint(fake: FakeTendril) -> str:
    return f"{fake.url}/v1/feedback"


def test_events_arrive_in_order_as_they_were_put(fake):
    with make_outbox() as outbox:
        for number in range(1, 6):
            outbox.put(make_event(number), endpoint(fake))
        assert outbox.flush()
    assert fake.events[0] == {
        "event_id": "e1", "trace_id": "t1", "type": "suggestion.shown", "client_seq": 1,
        "client_time": 1_000.0, "client_monotonic_s": 5.0,
    }  # fmt: skip
    assert [event["event_id"] for event in fake.events] == ["e1", "e2", "e3", "e4", "e5"]
    assert outbox.counts.accepted == 5


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_passing_failure_is_retried_until_the_event_is_taken(fake, status):
    fake.script = [Answer(status)] * 3
    with make_outbox() as outbox:
        outbox.put(make_event(), endpoint(fake))
        assert outbox.flush()
    assert (fake.batch_sizes, len(fake.events)) == ([1, 1, 1, 1], 1)


def test_an_answer_that_is_not_tendrils_is_no_delivery(fake):
    fake.script = [Answer(200, b"<html>log in to this network</html>"), Answer(200, b"{}")]
    with make_outbox() as outbox:
        outbox.put(make_event(), endpoint(fake))
        assert outbox.flush()
    assert (len(fake.batch_sizes), len(fake.events)) == (3, 1)


def test_a_repeat_of_what_the_server_took_counts_as_a_duplicate(fake):
    """As when the answer to the first try was lost."""
    fake.take(json.dumps({"events": [json.loads(make_event().to_json())]}).encode())
    with make_outbox() as outbox:
        outbox.put(make_event(), endpoint(fake))
        assert outbox.flush()
    assert (outbox.counts.duplicate, outbox.counts.accepted, len(fake.events)) == (1, 0, 1)


def test_a_refused_event_is_dropped_with_its_reason_and_the_others_arrive(fake):
    fake.verdict_on["edit.undone"] = refuse("feedback_token_expired", "invalid_request_error")
    drops: list[Drop] = []
    with make_outbox(on_drop=drops.append) as outbox:
        outbox.put(make_event(1, type="edit.undone"), endpoint(fake))
        outbox.put(make_event(2), endpoint(fake))
        assert outbox.flush()
    assert [event["event_id"] for event in fake.events] == ["e2"]
    assert (outbox.counts.refused, outbox.counts.accepted) == (1, 1)
    [drop] = drops
    assert drop.event_id == "e1"
    assert "feedback_token_expired" in drop.reason


def test_an_event_refused_for_now_stays(fake):
    fake.verdict_on["edit.undone"] = refuse("log_unavailable", "service_unavailable_error")
    with make_outbox() as outbox:
        outbox.put(make_event(1, type="edit.undone"), endpoint(fake))
        outbox.put(make_event(2), endpoint(fake))
        wait_for(lambda: len(fake.batch_sizes) > 3)
        assert outbox.num_pending == 1
        fake.verdict_on.clear()
        assert outbox.flush()
    assert fake.types == ["suggestion.shown", "edit.undone"]
    assert outbox.counts.refused == 0


def test_a_batch_that_is_refused_as_a_whole_is_halved_down_to_the_event_to_blame(fake):
    def answer(request: httpx2.Request) -> httpx2.Response:
        if b'"e3"' in request.content:
            return httpx2.Response(413, text="too large")
        taken = fake.take(request.content)
        return httpx2.Response(taken.status, content=taken.body)

    drops: list[Drop] = []
    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    with make_outbox(on_drop=drops.append, http=http) as outbox:
        for number in range(1, 8):
            outbox.put(make_event(number), endpoint(fake))
        assert outbox.flush()
    assert [drop.event_id for drop in drops] == ["e3"]
    assert sorted(event["event_id"] for event in fake.events) == [
        "e1",
        "e2",
        "e4",
        "e5",
        "e6",
        "e7",
    ]


def test_the_oldest_makes_room_and_is_counted(fake):
    fake.is_down = True
    drops: list[Drop] = []
    with make_outbox(max_events=3, on_drop=drops.append) as outbox:
        for number in range(1, 6):
            outbox.put(make_event(number), endpoint(fake))
        assert [drop.event_id for drop in drops] == ["e1", "e2"]
        assert {drop.reason for drop in drops} == {"outbox full"}
        fake.is_down = False
        assert outbox.flush()
    counts = outbox.counts
    assert (counts.put, counts.overflowed, counts.accepted) == (5, 2, 3)


def test_events_outlive_a_restart_with_their_ids_and_sequence(fake, tmp_path):
    fake.is_down = True
    with make_outbox(tmp_path / "outbox.db") as outbox:
        assert outbox.next_seq("s1") == 1
        outbox.put(make_event(), endpoint(fake))
    assert fake.events == []
    fake.is_down = False
    with make_outbox(tmp_path / "outbox.db") as outbox:
        assert outbox.next_seq("s1") == 2
        assert outbox.next_seq("s2") == 1
        assert outbox.flush()
    assert [event["event_id"] for event in fake.events] == ["e1"]


KILLED = """
import os, signal, sys
from pathlib import Path
from tendril_client import Event, Outbox
outbox = Outbox(Path(sys.argv[1]))
event = Event(event_id="e9", trace_id="t1", type="suggestion.shown", client_seq=1, details={},
              client_time=1.0, client_monotonic_s=1.0, feedback_token=None)
outbox.put(event, sys.argv[2])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_event_outlives_a_killed_process(fake, tmp_path):
    fake.is_down = True
    path = os.pathsep.join(sys.path)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "outbox.db"), endpoint(fake)],
        env={"PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    fake.is_down = False
    with make_outbox(tmp_path / "outbox.db") as outbox:
        assert outbox.flush()
    assert [event["event_id"] for event in fake.events] == ["e9"]


def test_close_does_not_wait_for_the_next_try_and_keeps_the_rest(fake, tmp_path):
    fake.is_down = True
    outbox = make_outbox(tmp_path / "outbox.db", backoff_s=3_600, max_backoff_s=3_600)
    outbox.put(make_event(), endpoint(fake))
    wait_for(lambda: len(fake.batch_sizes) == 1)
    outbox.close(timeout_s=10)
    assert len(fake.batch_sizes) <= 2  # one more, unless the first was just failing
    assert len(PendingEvents(tmp_path / "outbox.db")) == 1


def test_a_batch_goes_to_one_endpoint_only(tmp_path):
    pending = PendingEvents(tmp_path / "outbox.db")
    for number, url in enumerate(["a", "a", "b", "a"]):
        pending.add(PendingEvent(str(number), url, "{}"))
    assert [event.event_id for event in pending.oldest(4)] == ["0", "1"]
    pending.close()


def _post(answer: httpx2.Response) -> None:
    client = httpx2.Client(transport=httpx2.MockTransport(lambda request: answer))
    post(client, [PendingEvent("e1", "http://test/v1/feedback", "{}")], now=0.0)


def test_retry_after_is_honoured_in_both_forms():
    with pytest.raises(TryLater) as later:
        _post(httpx2.Response(429, headers={"retry-after": "17"}))
    assert later.value.after_s == 17
    at_90_s = "Thu, 01 Jan 1970 00:01:30 GMT"
    assert retry_after_s(at_90_s, now=60.0) == 30.0
    assert retry_after_s("soon", now=60.0) == 0.0


@pytest.mark.parametrize(
    ("asked_s", "waited_s"), [(0.0, 2.0), (1.0, 2.0), (17.0, 17.0), (1e9, MAX_RETRY_AFTER_S)]
)
def test_the_next_try_waits_for_the_back_off_or_as_long_as_it_is_asked_to(asked_s, waited_s):
    state = RetryCallState(Retrying(), None, (), {})
    state.set_exception((TryLater, TryLater("busy", asked_s), None))
    assert next_try_s(wait_fixed(2.0))(state) == waited_s


def test_an_outbox_that_is_asked_to_wait_does_not_try_again(fake):
    fake.script = [Answer(503, headers=(("retry-after", "3600"),))]
    with make_outbox() as outbox:
        outbox.put(make_event(), endpoint(fake))
        assert not outbox.flush(timeout_s=0.3)  # its back-off alone is 50 ms at most
        assert len(fake.batch_sizes) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 413])
def test_any_other_refusal_is_final(status):
    with pytest.raises(BatchRefused):
        _post(httpx2.Response(status))
