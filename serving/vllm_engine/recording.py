"""The recorder's seat inside vLLM: an engine client that sees what was sampled, below its API.

vLLM's own OpenAI server runs on it as on any engine client. Whatever that server asks for, the
requests that reach the engine here also bring log-probs, and each choice leaves a trace.
"""

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.exceptions import GracefulHTTPError, VLLMClientError, VLLMValidationError
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from serving.context import ServedRequest, served_request
from serving.engine import EngineBusy, SampledToken
from serving.node import ServingNode
from serving.recorder import Decision
from serving.spool import SpoolFull
from serving.text import SampledText, TextCodec
from serving.vllm_engine.engine import VllmEngine
from serving.vllm_engine.outputs import sampled_tokens, versioned
from serving.vllm_engine.silence import ARGUMENT, SilenceSlot
from tendril.log import LogUnavailable
from tendril.records import FinishReason, RoutedExperts, Sampling

REFUSALS = (EngineBusy, ValueError, VLLMClientError, GracefulHTTPError)
"""What vLLM raises for a request that it does not take up."""
FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop", "length": "length", "abort": "cancelled_by_client", "error": "error",
}  # fmt: skip


class RecordingClient:
    """What vLLM's server takes for its engine: all of it, with `generate` recorded."""

    def __init__(self, engine: VllmEngine, node: ServingNode, chat_template_digest: str) -> None:
        self._engine, self._node = engine, node
        self._chat_template_digest = chat_template_digest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine.llm, name)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """As vLLM's, and a trace for every choice, durable before the last output is handed on."""
        request = served_request.get()
        request.is_asked = True
        request.response_id = response_id(request_id)
        recording = self._recording(request, prompt, sampling_params)
        outputs = self._engine.stream(
            prompt,
            recording.prepared(self._engine.silence_ids),
            request_id,
            lane=request.lane,
            on_output=recording.add,
            on_stale=recording.stale.add,
            **{name: value for name, value in options.items() if name != "priority"},
        )
        try:
            async for output in outputs:
                refuse_grammar(output, sampling_params)
                if recording.ended:
                    self._finish(recording)
                yield output
        except Exception as error:
            recording.failed = True
            recording.refused = isinstance(error, REFUSALS) and not any(recording.tokens.values())
            if (status := status_of(error)) is None:
                raise
            raise GracefulHTTPError(str(error), status) from error
        finally:
            await outputs.aclose()
            self._finish(recording)

    def _recording(
        self, request: ServedRequest, prompt: Any, params: SamplingParams
    ) -> "Recording":
        node, silence = self._node, self._engine.silence
        explores = request.route == "suggestion" and silence is not None
        share = node.settings.explore_share if explores else 0.0
        forced = node.random.random() < share
        return Recording(
            request=request,
            params=params,
            prompt_token_ids=tuple(prompt.get("prompt_token_ids") or ()),
            model=node.settings.model_name,
            codec=node.codec,
            share=share,
            forced=forced,
            slot=silence.take(forced) if explores and silence else None,
            policy_version=lambda: self._engine.weights.policy_version,
            chat_template_digest=self._chat_template_digest if request.route == "chat" else None,
            choices=[next(request.choices) for _ in range(params.n)],
        )

    def _finish(self, recording: "Recording") -> None:
        """A trace for each choice; raises the first error when all were tried."""
        errors: list[Exception] = []
        for decision in recording.take_decisions():
            try:
                self._node.recorder.finish(decision)
            except (SpoolFull, LogUnavailable) as error:
                errors.append(error)
        if errors:
            raise errors[0]


def status_of(error: Exception) -> HTTPStatus | None:
    """What vLLM's server is to answer an error of ours; None for its own."""
    if isinstance(error, EngineBusy):
        return HTTPStatus.TOO_MANY_REQUESTS
    if isinstance(error, SpoolFull | LogUnavailable):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return None


def refuse_grammar(output: RequestOutput, params: SamplingParams) -> None:
    """Raises where the engine failed on a grammar that the client sent.

    vLLM compiles grammars beside the model, and would call it an error of the server's.
    """
    failed = any(choice.finish_reason == "error" for choice in output.outputs)
    if failed and params.structured_outputs is not None:
        raise VLLMValidationError(
            "structured_outputs: expected a grammar that can be followed",
            parameter="structured_outputs",
        )


def response_id(request_id: str) -> str | None:
    """The id under which the Responses API may continue this, from that of one of its steps."""
    return request_id.rpartition("_")[0] if request_id.startswith("resp_") else None


@dataclass(slots=True, kw_only=True)
class Recording:
    """One request of the engine while it is sampled: `n` choices of one prompt."""

    request: ServedRequest
    params: SamplingParams
    """As the client asked."""
    prompt_token_ids: tuple[int, ...]
    model: str
    codec: TextCodec
    share: float
    forced: bool
    slot: SilenceSlot | None
    policy_version: Callable[[], int]
    """The engine's now; a last output names the versions that sampled."""
    choices: list[int]
    chat_template_digest: str | None = None
    failed: bool = False
    refused: bool = False
    """Before anything was sampled, for what it asked: there is nothing to record."""
    stale: set[int] = field(default_factory=set)
    """Choices whose prompt was computed by older weights than all of their tokens."""
    last: dict[int, CompletionOutput] = field(default_factory=dict)
    tokens: dict[int, list[SampledToken]] = field(default_factory=dict)
    first_token_at: float | None = None
    queue_s: float | None = None
    ended: bool = False
    taken: bool = False

    def prepared(self, silence_ids: list[int]) -> SamplingParams:
        """The parameters to sample with: the client's, with log-probs and silence."""
        params = self.params
        prepared = params.clone()
        prepared.logprobs = 0 if params.logprobs is None else params.logprobs
        if self.request.route == "suggestion" and silence_ids:
            prepared.stop_token_ids = [*(params.stop_token_ids or []), *silence_ids]
            prepared._all_stop_token_ids = {*params._all_stop_token_ids, *silence_ids}
        arguments = {k: v for k, v in (params.extra_args or {}).items() if k != ARGUMENT}
        prepared.extra_args = arguments | (self.slot.arguments if self.slot else {})
        return prepared

    def add(self, output: RequestOutput) -> None:
        """Keep what `output` adds; cheap, as it runs for every token that is streamed."""
        if self.taken:
            return
        if self.first_token_at is None and any(o.token_ids for o in output.outputs):
            self._note_first(output)
        for choice in output.outputs:
            tokens = sampled_tokens(choice, self.policy_version())
            if self.params.output_kind == RequestOutputKind.DELTA:
                self.tokens.setdefault(choice.index, []).extend(tokens)
            else:
                self.tokens[choice.index] = tokens
            self.last[choice.index] = choice
        self.ended = output.finished

    def _note_first(self, output: RequestOutput) -> None:
        self.first_token_at = time.time()
        self.prompt_token_ids = tuple(output.prompt_token_ids or ())
        if (stats := output.metrics) is not None and stats.first_token_ts:
            self.first_token_at = stats.arrival_time + stats.first_token_latency
            self.queue_s = max(0.0, stats.scheduled_ts - stats.queued_ts)
        self.request.note_first_token(self.policy_version(), self.first_token_at)

    def take_decisions(self) -> list[Decision]:
        """What was decided, once: one decision a choice."""
        if self.taken:
            return []
        self.taken = True
        if self.slot is not None:
            self.tokens = {i: self.slot.corrected(t) for i, t in self.tokens.items()}
            self.slot.close()
        if self.refused:
            return []
        return [self._decision(index, self.tokens.get(index, [])) for index in range(self.params.n)]

    def _decision(self, index: int, tokens: list[SampledToken]) -> Decision:
        last, params = self.last.get(index), self.params
        stop = () if params.include_stop_str_in_output else tuple(params.stop or ())
        text = SampledText(self.codec, stop)
        tokens = versioned(tokens, last) if last else tokens
        for token in tokens:
            text.add(token.token_id, is_last=token is tokens[-1])
        if tokens and self.queue_s is not None:
            tokens[0] = tokens[0]._replace(queue_s=self.queue_s)
        ended_by = (last.finish_reason if last else None) or "abort"
        return Decision(
            request=self.request,
            choice=self.choices[index],
            model=self.model,
            prompt_token_ids=self.prompt_token_ids,
            sampling=sampling_of(params),
            text=text,
            exploration_share=self.share,
            forced=self.forced,
            untrainable="stale_prompt" if index in self.stale else masked_by(params),
            chat_template_digest=self.chat_template_digest,
            tokens=tokens,
            finish_reason="error" if self.failed else FINISH_REASONS.get(ended_by, "stop"),
            first_token_at=self.first_token_at,
            routed_experts=routed_experts(last) if last else None,
        )


def sampling_of(params: SamplingParams) -> Sampling:
    return Sampling(
        temperature=params.temperature,
        max_tokens=params.max_tokens or 0,
        top_p=params.top_p,
        top_k=max(0, params.top_k),
        min_p=params.min_p,
        seed=params.seed,
        stop=tuple(params.stop or ()),
    )


def masked_by(params: SamplingParams) -> str | None:
    """What moved probability among tokens in a way that the trace does not keep, or None.

    vLLM's log-probs are those after every mask and penalty: the learner's would be others.
    """
    reasons = {
        "presence_penalty": params.presence_penalty != 0,
        "frequency_penalty": params.frequency_penalty != 0,
        "repetition_penalty": params.repetition_penalty != 1,
        "logit_bias": bool(params.logit_bias),
        "allowed_token_ids": bool(params.allowed_token_ids),
        "bad_words": bool(params.bad_words),
        "min_tokens": params.min_tokens > 0,
        "structured_outputs": params.structured_outputs is not None,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def routed_experts(output: CompletionOutput) -> RoutedExperts | None:
    """The experts of a mixture model, where the engine was told to return them."""
    chosen = output.routed_experts
    if chosen is None:
        return None
    tokens, layers, experts = chosen.shape
    return RoutedExperts(
        shape=(tokens, layers, experts), ids=np.ascontiguousarray(chosen, np.dtype("<i2")).tobytes()
    )
