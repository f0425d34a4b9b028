"""The recorder: stands between the API and the engine and writes down what was really sampled.

It sees token ids and log-probs, whatever the API shows the client later, and puts one trace on
the spool for every choice that an engine took up: answered, silent, cut off or failed.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import msgspec

from serving.context import ServedRequest
from serving.engine import Engine, EngineBusy, EngineRequest, SampledToken
from serving.spool import SpoolFull
from serving.text import SampledText, TextCodec
from tendril.consent import Consents
from tendril.log import LogUnavailable
from tendril.records import (
    Exploration,
    FinishReason,
    Latency,
    PolicySpan,
    RoutedExperts,
    Sampling,
    ToolCall,
    Trace,
)

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Decision:
    """One choice of a request while it is sampled."""

    request: ServedRequest
    choice: int = 0
    model: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    text: SampledText
    exploration_share: float = 0.0
    """Probability that silence was to be forbidden; 0 outside the experiment."""
    forced: bool = False
    untrainable: str | None = None
    """A reason that the sampling parameters do not tell, such as a grammar's mask."""
    num_top_logprobs: int = 0
    stop_token_ids: tuple[int, ...] = ()
    chat_template_digest: str | None = None
    read_tool_calls: Callable[[str], tuple[ToolCall, ...]] | None = None
    """Finds the calls in the whole text; None where no tool was offered."""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: list[SampledToken] = field(default_factory=list)
    finish_reason: FinishReason = "cancelled_by_client"
    first_token_at: float | None = None
    routed_experts: RoutedExperts | None = None

    @property
    def trace_id(self) -> str:
        return self.request.trace_id(self.choice)

    @property
    def suppressed(self) -> bool:
        """The policy sampled, and nothing was shown."""
        return self.request.route == "suggestion" and bool(self.tokens) and not self.text.text

    def note_tool_calls(self) -> None:
        """At the end: what the text says of tools; a reply that stopped to call one says so."""
        if self.read_tool_calls is not None:
            self.tool_calls = self.read_tool_calls(self.text.text)
        if self.finish_reason == "stop" and any(call.name for call in self.tool_calls):
            self.finish_reason = "tool_calls"


class Recorder:
    """Samples for the API and leaves a trace."""

    def __init__(
        self, engine: Engine, codec: TextCodec, record: Callable[[Trace, Decision], None]
    ) -> None:
        self._engine, self._codec, self._record = engine, codec, record

    async def sample(self, decision: Decision) -> AsyncGenerator[str, None]:
        """Pieces of text as they are sampled. The trace is durable before the iterator ends."""
        tokens = self._engine.generate(engine_request(decision))
        is_refused = False
        try:
            async for token in tokens:
                if not decision.tokens:
                    decision.first_token_at = time.time()
                    decision.request.note_first_token(token.policy_version, decision.first_token_at)
                decision.tokens.append(token)
                piece = decision.text.add(token.token_id, is_last=token.finish is not None)
                if decision.text.stopped:
                    decision.finish_reason = "stop"
                elif token.finish:
                    decision.finish_reason = token.finish
                if piece:
                    yield piece
                if decision.text.stopped:
                    break
        except Exception as error:
            is_refused = isinstance(error, (EngineBusy, ValueError)) and not decision.tokens
            decision.finish_reason = "error"
            raise
        finally:
            await tokens.aclose()
            if not is_refused:
                self.finish(decision)

    def finish(self, decision: Decision) -> None:
        """Record what was sampled, also where that is nothing: every request is accounted for.

        Raises `SpoolFull` or `LogUnavailable` where it cannot be kept.
        """
        decision.note_tool_calls()
        request = decision.request
        request.prompt_tokens = len(decision.prompt_token_ids)
        request.completion_tokens += len(decision.tokens)
        request.finish_reasons.append(decision.finish_reason)
        request.sampling = decision.sampling
        trace = _trace(decision, self._codec.digest)
        consents = trace.train_consent or trace.content_consent
        self._record(trace if consents else without_content(trace), decision)

    def note_abandoned(self, request: ServedRequest, model: str) -> None:
        """Record a request whose client went before an engine took it up, unless one did.

        Where that cannot be kept, it is counted as refused.
        """
        if request.finish_reasons:
            return
        nothing = Sampling(temperature=1.0, max_tokens=0)
        decision = Decision(
            request=request,
            model=model,
            prompt_token_ids=(),
            sampling=nothing,
            text=SampledText(self._codec, ()),
        )
        try:
            self.finish(decision)
        except (SpoolFull, LogUnavailable) as error:
            log.warning("an abandoned request leaves no trace: %s", error)


def engine_request(decision: Decision) -> EngineRequest:
    """What the engine needs of a decision."""
    sampling = decision.sampling
    return EngineRequest(
        prompt_token_ids=decision.prompt_token_ids,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed if sampling.seed is None else sampling.seed + decision.choice,
        stop_token_ids=decision.stop_token_ids,
        forbid_silence=decision.forced,
        num_top_logprobs=decision.num_top_logprobs,
        lane=decision.request.lane,
    )


def _trace(decision: Decision, tokenizer_digest: str) -> Trace:
    request, ended_at = decision.request, time.time()
    return Trace(
        trace_id=decision.trace_id,
        choice=decision.choice,
        session_id=request.session.session_id,
        session_origin=request.session.origin,
        turn=request.session.turn,
        previous_trace_id=request.session.previous_trace_id,
        tenant=request.caller.tenant,
        user_key=request.caller.user_key,
        lane=request.lane,
        route=request.route,
        served_at=ended_at,
        model=decision.model,
        tokenizer_digest=tokenizer_digest,
        chat_template_digest=decision.chat_template_digest,
        harness_digest=request.harness_digest,
        prompt_token_ids=decision.prompt_token_ids,
        completion_token_ids=tuple(token.token_id for token in decision.tokens),
        behavior_logprobs=tuple(token.logprob for token in decision.tokens),
        policy_spans=policy_spans(decision.tokens),
        token_bytes=tuple(decision.text.token_bytes),
        sampling=decision.sampling,
        finish_reason=decision.finish_reason,
        suppressed=decision.suppressed,
        exploration=_exploration(decision),
        latency=Latency(
            queue_s=decision.tokens[0].queue_s or 0.0 if decision.tokens else 0.0,
            first_token_s=(decision.first_token_at or ended_at) - request.started_at,
            total_s=ended_at - request.started_at,
        ),
        arm=request.arm,
        propensity=request.propensity,
        train_consent=request.caller.train_consent,
        content_consent=request.caller.content_consent,
        tool_calls=decision.tool_calls,
        routed_experts=decision.routed_experts,
        untrainable=(
            decision.untrainable or untrainable(decision.sampling)
            if decision.tokens
            else "no_tokens"
        ),
    )


def as_agreed(trace: Trace, consents: Consents) -> Trace:
    """The trace as its user wants it now: a reply may stream for minutes, a no counts at once."""
    if not (trace.train_consent or trace.content_consent):
        return trace
    who = trace.tenant, trace.user_key
    trains = consents.trains_now(*who, asked=trace.train_consent)
    keeps = consents.allows_content(*who, asked=trace.content_consent)
    if (trains, keeps) == (trace.train_consent, trace.content_consent):
        return trace
    trace = msgspec.structs.replace(trace, train_consent=trains, content_consent=keeps)
    return trace if trains or keeps else without_content(trace)


def without_content(trace: Trace) -> Trace:
    """What may be kept of a user who agreed to nothing: that it happened, and how long it took.

    Token ids are words, to anybody with the tokenizer.
    """
    return msgspec.structs.replace(
        trace,
        prompt_token_ids=(),
        completion_token_ids=(),
        behavior_logprobs=(),
        policy_spans=(),
        token_bytes=(),
        sampling=msgspec.structs.replace(trace.sampling, stop=(), seed=None),
        exploration=None,
        tool_calls=(),
        routed_experts=None,
        untrainable="no_consent",
    )


def policy_spans(tokens: list[SampledToken]) -> tuple[PolicySpan, ...]:
    """Runs of equal policy version, in order."""
    spans: list[PolicySpan] = []
    for token in tokens:
        if spans and spans[-1].policy_version == token.policy_version:
            num_tokens = spans.pop().num_tokens + 1
        else:
            num_tokens = 1
        spans.append(PolicySpan(policy_version=token.policy_version, num_tokens=num_tokens))
    return tuple(spans)


def untrainable(sampling: Sampling) -> str | None:
    """Why the learner could not reproduce these log-probs, or None where it can."""
    if sampling.temperature == 0:
        return "greedy"
    if sampling.top_p < 1:
        return "top_p"
    if sampling.top_k > 0:
        return "top_k"
    return "min_p" if sampling.min_p > 0 else None


def _exploration(decision: Decision) -> Exploration | None:
    silence_logprob = decision.tokens[0].silence_logprob if decision.tokens else None
    if silence_logprob is None:
        return None
    return Exploration(
        share=decision.exploration_share, forced=decision.forced, silence_logprob=silence_logprob
    )
