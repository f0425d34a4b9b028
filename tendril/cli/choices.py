"""What several commands have in common: choices, options, and what stood before the command."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; goes into the release history.")]


class State:
    """What the options before the command said."""

    config: Path | None = None


class Engines(StrEnum):
    """The engines of `serving.engine`."""

    torch = "torch"
    vllm = "vllm"


class Logs(StrEnum):
    """The kinds of `log.kind`."""

    sqlite = "sqlite"
    kafka = "kafka"
