"""What the public API reads: bodies as clients send them, checked once, here."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
)

from tendril.records import FeedbackType

Identifier = Annotated[str, StringConstraints(min_length=1, max_length=128)]


def _encodable(text: str) -> str:
    """JSON may carry half of a surrogate pair, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("expected Unicode text, got half of a surrogate pair") from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]
MIN_TEMPERATURE = 0.01
Natural = Annotated[int, Field(ge=0, lt=2**63)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class CompletionBody(BaseModel):
    """`POST /v1/completions`, the fields of OpenAI's reference that this engine serves."""

    model_config = ConfigDict(extra="ignore")
    model: Text
    prompt: Text | list[Natural]
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

    @field_validator("temperature")
    @classmethod
    def _coldest_is_greedy(cls, temperature: float) -> float:
        """Below `MIN_TEMPERATURE` logits overflow, and nothing but the best token is left."""
        return temperature if temperature >= MIN_TEMPERATURE else 0.0

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
    feedback_token: Text | None = None
    """Came with the reply; may also stand in the URL's `token`."""
    value: float | None = Field(default=None, allow_inf_nan=False)
    span: tuple[Natural, Natural] | None = None
    horizon_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    visible_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    client_seq: Natural
    client_time: float = Field(allow_inf_nan=False)
    client_monotonic_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @field_validator("span")
    @classmethod
    def _in_order(cls, span: tuple[int, int] | None) -> tuple[int, int] | None:
        if span is not None and span[0] > span[1]:
            raise ValueError("expected [start, end) with start <= end")
        return span


class FeedbackBatch(BaseModel):
    """Several events at once; each is accepted or refused on its own."""

    model_config = ConfigDict(extra="forbid")
    events: list[dict[str, Any]] = Field(min_length=1, max_length=500)
