"""Whose request it is, and what became of it: made at the door, completed by the recorder.

The routes of an engine's own OpenAI server know nothing of tenants or traces. They run in the
task that the door started, so what is below them finds the request in a context variable.
"""

import itertools
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from serving.history import History
from tendril.ids import new_id
from tendril.records import FinishReason, Lane, Route, Sampling
from tendril.telemetry import Attribute


class Session(NamedTuple):
    """A conversation or an open file, and this request's place in it."""

    session_id: str
    origin: Literal["given", "inferred"]
    turn: int = 0
    previous_trace_id: str | None = None


class Caller(NamedTuple):
    """Who asks."""

    tenant: str
    user_key: str
    train_consent: bool = True
    content_consent: bool = False


@dataclass(slots=True, kw_only=True)
class ServedRequest:
    """One HTTP request while it is served."""

    caller: Caller
    session: Session
    route: Route
    lane: Lane = "online"
    arm: str = "live"
    propensity: float = 1.0
    harness_digest: str | None = None
    request_id: str = field(default_factory=new_id)
    policy_version: int | None = None
    """Of the first token; None while nothing was sampled, so that there is no trace."""
    is_asked: bool = False
    """Whether the API has got as far as asking the engine."""
    choices: Iterator[int] = field(default_factory=itertools.count)
    """Numbers of the request's choices not yet given out."""
    history: History | None = None
    """What its messages say about the conversation, to find its next turn by."""
    response_id: str | None = None
    """Under which the Responses API may continue this one."""
    started_at: float = field(default_factory=time.time)
    first_token_at: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reasons: list[FinishReason] = field(default_factory=list)
    sampling: Sampling | None = None
    """Of its choices, which share it."""

    def trace_id(self, choice: int) -> str:
        """The first choice has the request's own id, so that one header names them all."""
        return self.request_id if choice == 0 else f"{self.request_id}.{choice}"

    def note_first_token(self, policy_version: int, at: float) -> None:
        """Of the choice that was first: from here on the reply can name its policy version."""
        if self.policy_version is None:
            self.policy_version, self.first_token_at = policy_version, at

    def span_attributes(self, model: str) -> dict[str, Attribute | list[str]]:
        """What is known at the end, in the names of the GenAI conventions; never content."""
        attributes: dict[str, Attribute | list[str]] = {
            **_sampling_attributes(self.sampling),
            "gen_ai.request.choice.count": len(self.finish_reasons),
            "gen_ai.response.id": self.request_id,
            "gen_ai.conversation.id": self.session.session_id,
            "gen_ai.usage.input_tokens": self.prompt_tokens,
            "gen_ai.usage.output_tokens": self.completion_tokens,
            "gen_ai.response.finish_reasons": [str(reason) for reason in self.finish_reasons],
            "tendril.arm": self.arm,
            "tendril.lane": self.lane,
        }
        if self.policy_version is not None:
            attributes["gen_ai.response.model"] = f"{model}-v{self.policy_version}"
            attributes["tendril.policy.version"] = self.policy_version
        if "error" in self.finish_reasons:
            attributes["error.type"] = "engine"
        if self.first_token_at is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = (
                self.first_token_at - self.started_at
            )
        return attributes


served_request: ContextVar[ServedRequest] = ContextVar("served_request")


def operation(route: Route) -> str:
    """As the GenAI semantic conventions name it."""
    return "chat" if route == "chat" else "text_completion"


def _sampling_attributes(sampling: Sampling | None) -> dict[str, Attribute | list[str]]:
    if sampling is None:
        return {}
    attributes: dict[str, Attribute | list[str]] = {
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
    }
    if sampling.seed is not None:
        attributes["gen_ai.request.seed"] = sampling.seed
    return attributes
