"""What the public API reads: bodies as clients send them, checked once, here.

Fields of OpenAI's reference that change no token (`store`, `metadata`, `service_tier`, ...) are
accepted and ignored; what would change tokens and this engine cannot do is refused.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    field_validator,
    model_validator,
)

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
MIN_TOP_P = 1e-6
MAX_CHOICES = 8
Natural = Annotated[int, Field(ge=0, lt=2**63)]
StopString = Annotated[Text, StringConstraints(min_length=1, max_length=512)]


def _unsupported(value: Any) -> Any:
    if value:
        raise ValueError("the torch engine cannot do this, the vLLM engine can")
    return value


Penalty = Annotated[
    float, AfterValidator(_unsupported), WithJsonSchema({"type": "number", "const": 0})
]
LogitBias = Annotated[
    dict[str, float],
    AfterValidator(_unsupported),
    WithJsonSchema({"type": "object", "maxProperties": 0}),
]


class StreamOptions(BaseModel):
    include_usage: bool = False


class GenerationBody(BaseModel):
    """What both routes read: how to sample, how often, and how to answer."""

    model_config = ConfigDict(extra="ignore")
    model: Text
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, lt=2**31)
    """0 and -1: all tokens. Not OpenAI's, but vLLM's."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: list[StopString] = Field(default=[], max_length=4)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    user: Identifier | None = None
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    logit_bias: LogitBias = {}

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None}

    @field_validator("temperature")
    @classmethod
    def _coldest_is_greedy(cls, temperature: float) -> float:
        """Below `MIN_TEMPERATURE` logits overflow, and nothing but the best token is left."""
        return temperature if temperature >= MIN_TEMPERATURE else 0.0

    @field_validator("top_p")
    @classmethod
    def _smallest_is_one_token(cls, top_p: float) -> float:
        """What rounds to zero in float32 would leave no token at all."""
        return max(top_p, MIN_TOP_P)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop or []

    @field_validator("stream_options")
    @classmethod
    def _only_streams(cls, options: StreamOptions | None, info: Any) -> StreamOptions | None:
        if options is not None and not info.data.get("stream", False):
            raise ValueError("expected only with stream: true")
        return options

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(GenerationBody):
    """`POST /v1/completions`, the fields of OpenAI's reference that this engine serves."""

    prompt: Text | list[Natural] | list[Text] | list[list[Natural]]
    suffix: Text | None = None
    """Comes after the completion: fill in the middle."""
    max_tokens: int = Field(default=16, ge=1)
    best_of: Literal[1] = 1
    logprobs: int | None = Field(default=None, ge=0, le=5)
    echo: bool = False

    @field_validator("echo")
    @classmethod
    def _not_scored(cls, echo: bool, info: Any) -> bool:
        if echo and info.data.get("logprobs") is not None:
            raise ValueError("expected without logprobs: a prompt is not scored")
        return echo
