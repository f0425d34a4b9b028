"""What an engine is to the rest of serving: token ids in, sampled tokens out, weights changeable.

The torch engine and the vLLM engine implement it; the contract tests run on both.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from tendril.records import Lane


class EngineBusy(RuntimeError):
    """The waiting queue is full: answer 429 and let the client come back."""


class SwapRefused(RuntimeError):
    """The new weights cannot be applied; the old version goes on serving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One completion to sample."""

    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    """End the reply, beside the model's own end of text."""
    forbid_silence: bool = False
    """Exploration: the first token must not be the silence token."""
    num_top_logprobs: int = 0
    """How many of the most probable tokens to report with each sampled one."""
    lane: Lane = "online"
    """Online requests go first; offline ones may be set back, with their tokens kept."""


class SampledToken(NamedTuple):
    """One step of one request."""

    token_id: int
    logprob: float
    """Under the policy, after temperature, before exploration."""
    policy_version: int
    finish: Literal["stop", "length"] | None
    """Set on the last token."""
    silence_logprob: float | None = None
    """First token only: of the silence token, where the model has one."""
    queue_s: float | None = None
    """First token only: how long the request waited before the engine took it up."""
    top_logprobs: tuple[tuple[int, float], ...] = ()
    """The most probable (token id, logprob), best first, where asked for."""


class SwapResult(NamedTuple):
    """A weight change that happened."""

    policy_version: int
    pause_ms: float
    """How long no token could be sampled."""
    weights_digest: str
    """Of the weights now in the engine, read back from it."""


class EngineStats(NamedTuple):
    """What the engine is doing now."""

    policy_version: int
    weights_digest: str
    num_running: int
    num_waiting: int
    num_reused_tokens: int = 0
    """Prompt tokens since the start that another request's keys and values spared computing."""


class Engine(Protocol):
    """A policy that can be sampled, and changed in place."""

    def generate(self, request: EngineRequest) -> AsyncGenerator[SampledToken, None]:
        """Sample until end of text, silence or `max_tokens`; closing the iterator aborts.

        Raises `EngineBusy` before the first token where the queue is full, `ValueError` for a
        prompt that the engine cannot hold.
        """
        ...

    def check_room(self, lane: Lane) -> None:
        """Raises `EngineBusy` where the lane's queue is full; `generate` does so as well."""
        ...

    def stage(self, policy_version: int, folder: Path) -> str:
        """Load a version beside the live one, off the hot path; returns its digest.

        Raises `SwapRefused` for a checkpoint that does not fit. Blocks: call it in a thread.
        """
        ...

    def swap(self, policy_version: int) -> SwapResult:
        """Make the staged version live between two steps; running requests go on.

        Raises `SwapRefused` where that version is not staged. Blocks: call it in a thread.
        """
        ...

    def stats(self) -> EngineStats: ...

    def check(self) -> None:
        """Raises where the engine has died: nothing will be sampled again."""
        ...

    def close(self) -> None: ...


def check_request(request: EngineRequest, capacity: int, vocabulary: int) -> None:
    """Raises `ValueError` for a request that an engine cannot hold.

    It must not reach a batch: it would fail its neighbours.
    """
    prompt = request.prompt_token_ids
    if not prompt or len(prompt) + request.max_tokens > capacity:
        raise ValueError(
            f"prompt and max_tokens: expected 1 to {capacity} tokens together, "
            f"got {len(prompt)} + {request.max_tokens}"
        )
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        raise ValueError(
            f"prompt: expected token ids from 0 to {vocabulary - 1}, "
            f"got {min(prompt)} to {max(prompt)}"
        )


def check_queue(lane: Lane, num_waiting: int, max_waiting: int, lent_slots: int) -> None:
    """Raises `EngineBusy` where one more of the lane may not wait."""
    if lane == "offline" and not lent_slots:
        raise EngineBusy("no slots are lent to offline requests")
    if num_waiting >= max_waiting:
        raise EngineBusy(f"{num_waiting} requests wait, limit {max_waiting}")
