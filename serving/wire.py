"""What the public API reads: bodies as clients send them, checked once, here."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from tendril.records import FeedbackType

Identifier = Annotated[str, StringConstraints(min_length=1, max_length=128)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class CompletionBody(BaseModel):
    """`POST /v1/completions`, the fields of OpenAI's reference that this engine serves."""

    model_config = ConfigDict(extra="ignore")
    model: str
    prompt: str | list[Annotated[int, Field(ge=0)]]
    max_tokens: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    n: Literal[1] = 1
    stream: bool = False
    stop: list[StopString] = Field(default=[], max_length=4)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    logprobs: int | None = Field(default=None, ge=0, le=1)
    echo: Literal[False] = False
    user: Identifier | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop or []


class FeedbackEvent(BaseModel):
    """One event, as a client reports it; see `tendril.records.Feedback` for the meanings."""

    model_config = ConfigDict(extra="forbid")
    event_id: Identifier
    trace_id: Identifier
    type: FeedbackType
    feedback_token: str | None = None
    """Came with the reply; may also stand in the URL's `token`."""
    value: float | None = Field(default=None, allow_inf_nan=False)
    span: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = None
    horizon_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    visible_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    client_seq: int = Field(ge=0)
    client_time: float = Field(allow_inf_nan=False)
    client_monotonic_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class FeedbackBatch(BaseModel):
    """Several events at once; each is accepted or refused on its own."""

    model_config = ConfigDict(extra="forbid")
    events: list[dict[str, Any]] = Field(min_length=1, max_length=500)
