"""What every table of the settings is."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

EngineName = Literal["torch", "vllm"]
Origin = Annotated[str, StringConstraints(pattern=r"^(\*|https?://[^/?#\s]+)$")]


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
