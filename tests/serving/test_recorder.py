"""The recorder: one trace for every decision an engine took up, whatever became of it."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from serving.context import Caller, ServedRequest, Session
from serving.engine import EngineBusy, EngineRequest, SampledToken
from serving.recorder import Decision, Recorder, policy_spans, untrainable
from serving.text import SampledText, TextCodec
from tendril.records import PolicySpan, Sampling, Trace


class Scripted:
    """Emits its script: tokens, then an error, or nothing ever again."""

    def __init__(self, *script: SampledToken | Exception) -> None:
        self.script = script

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SampledToken, None]:
        for step in self.script:
            if isinstance(step, Exception):
                raise step
            yield step
        await asyncio.sleep(60)


def token(token_id: int, version: int = 1, **more: Any) -> SampledToken:
    return SampledToken(token_id, -0.5, version, more.pop("finish", None), **more)


def make_decision(checkpoint: Path, **overrides: Any) -> Decision:
    request = ServedRequest(
        caller=Caller("acme", "u1"), session=Session("s1", "given", 3, "t0"), route="chat"
    )
    fields: dict[str, Any] = {
        "request": request,
        "model": "tendril",
        "prompt_token_ids": (5, 6),
        "sampling": Sampling(temperature=1.0, max_tokens=4),
        "text": SampledText(TextCodec(checkpoint), ()),
    }
    return Decision(**(fields | overrides))


def recorded(
    checkpoint: Path, *script: SampledToken | Exception, **overrides: Any
) -> tuple[list[Trace], Exception | None]:
    """The traces that the script leaves; a client waits for it 50 ms and goes."""
    traces: list[Trace] = []
    engine: Any = Scripted(*script)
    recorder = Recorder(engine, TextCodec(checkpoint), lambda trace, _: traces.append(trace))

    async def use() -> None:
        async with asyncio.timeout(0.05):
            async for _ in recorder.sample(make_decision(checkpoint, **overrides)):
                pass

    try:
        asyncio.run(use())
    except Exception as error:  # noqa: BLE001  the test looks at it
        return traces, error
    return traces, None


def test_a_client_that_goes_before_the_first_token_leaves_an_empty_trace(checkpoint: Path) -> None:
    (trace,), error = recorded(checkpoint)
    assert isinstance(error, TimeoutError)
    assert (trace.completion_token_ids, trace.policy_spans) == ((), ())
    assert (trace.finish_reason, trace.untrainable) == ("cancelled_by_client", "no_tokens")
    assert (trace.session_id, trace.turn, trace.previous_trace_id) == ("s1", 3, "t0")


def test_a_client_that_goes_in_the_middle_leaves_what_was_sampled(checkpoint: Path) -> None:
    (trace,), _ = recorded(checkpoint, token(70), token(71, version=2))
    assert trace.completion_token_ids == (70, 71)
    assert trace.finish_reason == "cancelled_by_client"
    assert [span.policy_version for span in trace.policy_spans] == [1, 2]


@pytest.mark.parametrize("steps", [(), (token(70),)])
def test_an_engine_that_fails_leaves_a_trace_that_says_so(
    checkpoint: Path, steps: tuple[SampledToken, ...]
) -> None:
    (trace,), error = recorded(checkpoint, *steps, RuntimeError("broken"))
    assert str(error) == "broken"
    assert (trace.finish_reason, len(trace.completion_token_ids)) == ("error", len(steps))


@pytest.mark.parametrize("refusal", [EngineBusy("full"), ValueError("too long")])
def test_a_refused_request_is_no_decision(checkpoint: Path, refusal: Exception) -> None:
    traces, error = recorded(checkpoint, refusal)
    assert (traces, error) == ([], refusal)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"temperature": 0.0}, "greedy"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
    ],
)
def test_sampling_that_the_learner_cannot_redo_is_named(
    fields: dict[str, Any], reason: str | None
) -> None:
    assert untrainable(Sampling(**({"temperature": 1.0, "max_tokens": 4} | fields))) == reason


def test_spans_are_runs_of_one_version() -> None:
    versions = [1, 1, 2, 1]
    assert policy_spans([token(0, version=v) for v in versions]) == (
        PolicySpan(policy_version=1, num_tokens=2),
        PolicySpan(policy_version=2, num_tokens=1),
        PolicySpan(policy_version=1, num_tokens=1),
    )


def test_a_request_that_no_engine_saw_leaves_one_empty_trace(checkpoint: Path) -> None:
    traces: list[Trace] = []
    engine: Any = Scripted()
    recorder = Recorder(engine, TextCodec(checkpoint), lambda trace, _: traces.append(trace))
    request = make_decision(checkpoint).request
    recorder.note_abandoned(request, "tendril")
    recorder.note_abandoned(request, "tendril")
    (trace,) = traces
    assert (trace.prompt_token_ids, trace.completion_token_ids) == ((), ())
    assert (trace.finish_reason, trace.untrainable) == ("cancelled_by_client", "no_tokens")
