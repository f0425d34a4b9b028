"""What every feedback event says, and the kinds of value that its fields take."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from pydantic import model_validator as check

from serving.api.wire import Identifier, Text
from tendril.records import FeedbackType

Code = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,63}$")]
"""A name out of some list, such as `typed_over` or `pytest/9.2`: no spaces, so no sentences."""
Reference = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Span = tuple[Count, Count]


class Event(BaseModel):
    """What every event says."""

    model_config = ConfigDict(extra="forbid")
    event_id: Identifier
    type: FeedbackType
    client_seq: Count
    client_time: Number
    client_monotonic_s: Positive | None = None
    surface: Code | None = None
    client: Code | None = None
    vocabulary: Literal[1] = Field(default=1, alias="schema")
    feedback_token: Text | None = None
    """Came with the reply; may also stand in the URL's `token`."""

    @field_validator("span", check_fields=False)
    @classmethod
    def _in_order(cls, span: tuple[int, int] | None) -> tuple[int, int] | None:
        if span is not None and span[0] > span[1]:
            raise ValueError("expected [start, end) with start <= end")
        return span

    @check(mode="after")
    def _part_of_the_whole(self) -> "Event":
        for part, whole in (("num_chars", "total_chars"), ("arc_chars", "total_chars")):
            have, of = getattr(self, part, None), getattr(self, whole, None)
            if have is not None and of is not None and have > of:
                raise ValueError(f"expected {part} <= {whole}, got {have} of {of}")
        return self


class TraceEvent(Event):
    """About one trace; its token proves that the client got that reply."""

    trace_id: Identifier
    candidate_id: Identifier | None = None
    edit_id: Identifier | None = None
    hunk_id: Identifier | None = None
