"""The recorder: stands between the API and the engine and writes down what was really sampled.

It sees token ids and log-probs, whatever the API shows the client later, and puts one trace on
the spool for every decision that sampled a token: answered, silent, cut off or failed.
"""

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from serving.api.text import SampledText, TextCodec
from serving.engine import Engine, EngineRequest, SampledToken
from tendril.ids import new_id
from tendril.records import (
    Exploration,
    FinishReason,
    Latency,
    PolicySpan,
    Route,
    Sampling,
    Trace,
)


class Caller(NamedTuple):
    """Whose request it is."""

    tenant: str
    user_key: str
    session_id: str
    session_given: bool
    train_consent: bool


@dataclass(slots=True, kw_only=True)
class Decision:
    """One request while it is served."""

    caller: Caller
    route: Route
    model: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    exploration_share: float
    """Probability that silence was to be forbidden; 0 outside the experiment."""
    forced: bool
    text: SampledText
    trace_id: str = field(default_factory=new_id)
    tokens: list[SampledToken] = field(default_factory=list)
    finish_reason: FinishReason = "cancelled_by_client"
    started_at: float = field(default_factory=time.time)
    first_token_at: float | None = None

    @property
    def suppressed(self) -> bool:
        """The policy sampled, and nothing was shown."""
        return bool(self.tokens) and not self.text.text

    @property
    def policy_version(self) -> int | None:
        """Of the first token; None before it."""
        return self.tokens[0].policy_version if self.tokens else None


class Recorder:
    """Samples for the API and leaves a trace."""

    def __init__(self, engine: Engine, codec: TextCodec, record: Callable[[Trace], None]) -> None:
        self._engine, self._codec, self._record = engine, codec, record

    async def sample(self, decision: Decision) -> AsyncGenerator[str, None]:
        """Pieces of text as they are sampled. The trace is durable before the iterator ends."""
        request = EngineRequest(
            prompt_token_ids=decision.prompt_token_ids,
            max_tokens=decision.sampling.max_tokens,
            temperature=decision.sampling.temperature,
            top_p=decision.sampling.top_p,
            seed=decision.sampling.seed,
            forbid_silence=decision.forced,
        )
        tokens = self._engine.generate(request)
        try:
            async for token in tokens:
                decision.first_token_at = decision.first_token_at or time.time()
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
        except Exception:
            decision.finish_reason = "error"
            raise
        finally:
            await tokens.aclose()
            if decision.tokens:
                self._record(self._trace(decision))

    def _trace(self, decision: Decision) -> Trace:
        ended_at = time.time()
        first_token_at = decision.first_token_at or ended_at
        return Trace(
            trace_id=decision.trace_id,
            session_id=decision.caller.session_id,
            session_origin="given" if decision.caller.session_given else "inferred",
            tenant=decision.caller.tenant,
            user_key=decision.caller.user_key,
            route=decision.route,
            served_at=ended_at,
            model=decision.model,
            tokenizer_digest=self._codec.digest,
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
                queue_s=decision.tokens[0].queue_s or 0.0,
                first_token_s=first_token_at - decision.started_at,
                total_s=ended_at - decision.started_at,
            ),
            train_consent=decision.caller.train_consent,
            untrainable=untrainable(decision.sampling),
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
    return "top_p" if sampling.top_p < 1 else None


def _exploration(decision: Decision) -> Exploration | None:
    silence_logprob = decision.tokens[0].silence_logprob
    if silence_logprob is None:
        return None
    return Exploration(
        share=decision.exploration_share, forced=decision.forced, silence_logprob=silence_logprob
    )
