"""Choices on the command line."""

from enum import StrEnum


class Engines(StrEnum):
    """The engines of `serving.engine`."""

    torch = "torch"
    vllm = "vllm"


class Logs(StrEnum):
    """The kinds of `log.kind`."""

    sqlite = "sqlite"
    kafka = "kafka"
