"""Trace: one served decision, silence included."""

from typing import Literal

import msgspec

from tendril.records.base import Record

Lane = Literal["online", "offline"]
Route = Literal["chat", "completion", "suggestion"]
FinishReason = Literal[
    "stop", "length", "tool_calls", "cancelled_by_client", "interrupted", "error"
]


class PolicySpan(msgspec.Struct, frozen=True, kw_only=True):
    """`num_tokens` consecutive completion tokens, sampled by one policy version."""

    policy_version: int
    num_tokens: int


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens were drawn; `temperature` 0 means greedy."""

    temperature: float
    max_tokens: int
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """One decision's place in the show-regardless experiment (only where silence is a choice)."""

    share: float
    """Probability, fixed before the decision, that silence was forbidden for it."""
    forced: bool
    """Whether it was."""
    silence_logprob: float
    """Of the silence token as first token, under the policy alone."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds a request spent: waiting for the engine, to its first token, in all."""

    queue_s: float
    first_token_s: float
    total_s: float


class RoutedExperts(msgspec.Struct, frozen=True, kw_only=True):
    """Experts that a mixture-of-experts model chose, for replay in the learner."""

    shape: tuple[int, int, int]
    """(tokens, layers, experts chosen a token)."""
    ids: bytes
    """Little-endian int16, C order."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool that the model wrote, or meant to."""

    name: str | None
    """None where it could not be read; what was written was then shown as content."""
    valid: bool
    """Well formed, of a tool that was offered."""
    tokens: tuple[int, int] | None = None
    """[start, end) places of the completion tokens that wrote it; None: not known."""


class Trace(Record, frozen=True, kw_only=True):
    """One served decision, silence included, with all that is needed to score it again."""

    TOPIC = "traces"
    trace_id: str
    session_id: str
    session_origin: Literal["given", "inferred"]
    turn: int = 0
    """Index of the trace in its session, as far as the node saw."""
    previous_trace_id: str | None = None
    """The turn before this one; None for a first turn, or where it is not known."""
    choice: int = 0
    """Which of the request's choices this is; trace ids of one request differ only by it."""
    tenant: str
    user_key: str
    """Keyed hash of the user, see `tendril.ids.user_key`."""
    lane: Lane = "online"
    route: Route
    served_at: float
    model: str
    tokenizer_digest: str
    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]  # [T], the silence token included when it was sampled
    behavior_logprobs: tuple[float, ...]
    """[T]: of each sampled token under the policy, after temperature, before exploration."""
    policy_spans: tuple[PolicySpan, ...]
    """In order; their `num_tokens` sum to T. Weights can change in the middle of a reply."""
    token_bytes: tuple[int, ...]
    """[T]: bytes of shown text each token added, so feedback spans map to tokens exactly."""
    sampling: Sampling
    finish_reason: FinishReason
    suppressed: bool = False
    """The policy chose silence: nothing was shown."""
    exploration: Exploration | None = None
    latency: Latency
    arm: str = "live"
    propensity: float = 1.0
    """Probability of `arm` for this user."""
    train_consent: bool = True
    content_consent: bool = False
    """Whether the words themselves may be kept in the lake."""
    chat_template_digest: str | None = None
    harness_digest: str | None = None
    """Of the prompts and tools around the model, where the application names it."""
    tool_calls: tuple[ToolCall, ...] = ()
    routed_experts: RoutedExperts | None = None
    untrainable: str | None = None
    """Why the learner must not use it (for example a sampler it cannot renormalise), or None."""

    def __post_init__(self) -> None:
        num_tokens = len(self.completion_token_ids)
        spans = sum(span.num_tokens for span in self.policy_spans)
        for name, got in (
            ("behavior_logprobs", len(self.behavior_logprobs)),
            ("token_bytes", len(self.token_bytes)),
            ("tokens in policy_spans", spans),
        ):
            if got != num_tokens:
                raise ValueError(
                    f"trace {self.trace_id}: got {got} {name} for {num_tokens} completion tokens"
                )
