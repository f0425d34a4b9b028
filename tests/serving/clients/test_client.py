"""`Tendril` and `AsyncTendril`: every reply of the OpenAI client becomes a suggestion."""

import asyncio

import httpx2
import openai
import pytest

from tendril.records import Feedback
from tendril_client import AsyncTendril, Drop, NoTrace, Outbox, Tendril
from tendril_client.client import feedback_target
from tests.serving.clients.fake_server import FakeTendril, wait_for
from tests.serving.live_server import KEY, LiveServer


def make_tendril(fake: FakeTendril, **overrides) -> Tendril:
    return Tendril(f"{fake.url}/v1", "key", **overrides)


def test_a_completion_becomes_a_suggestion(fake):
    with make_tendril(fake) as tendril:
        first = tendril.openai.completions.create(model="m", prompt="a")
        second = tendril.openai.completions.create(model="m", prompt="b")
        suggestion = tendril.suggestion(first)
        assert (suggestion.trace_id, suggestion.policy_version) == ("trace-1", 7)
        assert tendril.suggestion(second).trace_id == "trace-2"
        assert tendril.suggestion(second, choice=2).trace_id == "trace-2.2"
        suggestion.shown()
    [event] = fake.events
    assert (event["trace_id"], event["feedback_token"]) == ("trace-1", "t-trace-1")


def test_raw_and_streamed_responses_become_suggestions(fake):
    with make_tendril(fake) as tendril:
        completions = tendril.openai.completions
        raw = completions.with_raw_response.create(model="m", prompt="a")
        assert tendril.suggestion(raw).trace_id == "trace-1"
        assert tendril.suggestion(raw.parse()).trace_id == "trace-1"
        with completions.with_streaming_response.create(model="m", prompt="a") as response:
            assert tendril.suggestion(response).trace_id == "trace-2"
        with completions.create(model="m", prompt="a", stream=True) as stream:
            assert tendril.suggestion(stream).trace_id == "trace-3"


def test_the_async_client_does_the_same(fake):
    async def run() -> None:
        async with AsyncTendril(f"{fake.url}/v1", "key", session_id="s1") as tendril:
            completions = tendril.openai.completions
            replies = await asyncio.gather(
                *(completions.create(model="m", prompt=str(i)) for i in range(5))
            )
            for reply in replies:
                suggestion = tendril.suggestion(reply)
                assert reply.id == f"cmpl-{suggestion.trace_id}"
                suggestion.shown()
            stream = await completions.create(model="m", prompt="a", stream=True)
            assert tendril.suggestion(stream).trace_id == "trace-6"
            await stream.close()

    asyncio.run(run())
    assert fake.types == ["suggestion.shown"] * 5


def test_who_and_what_is_allowed_travels_with_every_request(fake):
    with make_tendril(fake, user="ada", session_id="s1", train_consent=False) as tendril:
        tendril.openai.completions.create(model="m", prompt="a")
    [headers] = fake.request_headers
    sent = {name.lower(): value for name, value in headers.items()}
    assert sent["authorization"] == "Bearer key"
    assert sent["x-tendril-user"] == "ada"
    assert sent["x-tendril-session-id"] == "s1"
    assert sent["x-tendril-train-consent"] == "false"
    assert sent["x-tendril-content-consent"] == "false"


def test_a_given_client_keeps_its_ways(fake):
    given = openai.OpenAI(api_key="other", timeout=3, max_retries=7, default_headers={"x-own": "1"})
    with make_tendril(fake, openai=given) as tendril:
        assert (tendril.openai.timeout, tendril.openai.max_retries) == (3, 7)
        tendril.suggestion(tendril.openai.completions.create(model="m", prompt="a"))
    [headers] = fake.request_headers
    assert {name.lower(): value for name, value in headers.items()}["x-own"] == "1"
    given.close()


def test_a_hook_of_the_callers_http_client_goes_on(fake):
    seen: list[int] = []
    hooks = {"response": [lambda response: seen.append(response.status_code)]}
    http = httpx2.Client(event_hooks=hooks)
    with make_tendril(fake, http_client=http) as tendril:
        tendril.suggestion(tendril.openai.completions.create(model="m", prompt="a"))
    assert seen == [200]


def test_a_reply_without_a_trace_says_so(fake):
    with (
        make_tendril(fake) as tendril,
        openai.OpenAI(base_url=f"{fake.url}/v1", api_key="key") as other,
    ):
        foreign = other.completions.create(model="m", prompt="a")
        with pytest.raises(NoTrace, match="Completion"):
            tendril.suggestion(foreign)


@pytest.mark.parametrize(
    ("base_url", "feedback_url", "expected"),
    [
        ("http://h/v1", "/v1/feedback?token=a.b-c_d", ("http://h/v1/feedback", "a.b-c_d")),
        ("http://h/v1/", "/v1/feedback?token=x%2By", ("http://h/v1/feedback", "x+y")),
        ("https://h/tendril/v1", "/v1/feedback", ("https://h/tendril/v1/feedback", None)),
        ("http://h/v1", "https://other/fb?token=x", ("https://other/fb", "x")),
    ],
)
def test_a_feedback_url_is_relative_to_the_servers_root(base_url, feedback_url, expected):
    assert feedback_target(base_url, feedback_url) == expected


def test_a_serving_process_takes_every_event(server: LiveServer):
    with Tendril(f"{server.url}/v1", KEY, user="new-here") as tendril:
        reply = tendril.openai.completions.create(model="tendril", prompt="def a", max_tokens=8)
        suggestion = tendril.suggestion(reply)
        suggestion.shown(visible_ms=800)
        suggestion.accepted_partially(span=(0, 1), granularity="word")
        suggestion.accepted(method="tab")
        suggestion.retained(30, 1.0)
        suggestion.rated(4, scale=(1, 5))
        suggestion.session_ended()
        assert tendril.outbox.flush()
        assert tendril.outbox.counts.accepted == 6
    trace = server.trace(suggestion.trace_id)
    assert suggestion.policy_version == trace.policy_spans[0].policy_version
    _wait_for_feedback(server, suggestion.trace_id, 5)


def _wait_for_feedback(server: LiveServer, trace_id: str, num_events: int) -> None:
    def have() -> int:
        return sum(event.trace_id == trace_id for event in server.records(Feedback))

    wait_for(lambda: have() >= num_events)


def test_a_serving_process_refuses_a_token_of_another_trace_for_good(server: LiveServer):
    drops: list[Drop] = []
    with Tendril(f"{server.url}/v1", KEY, outbox=Outbox(on_drop=drops.append)) as tendril:
        reply = tendril.openai.completions.create(model="tendril", prompt="def a", max_tokens=2)
        suggestion = tendril.suggestion(reply)
        suggestion.feedback_token = "forged"
        suggestion.shown()
        assert tendril.outbox.flush()
    assert ["feedback_token_invalid" in drop.reason for drop in drops] == [True]
