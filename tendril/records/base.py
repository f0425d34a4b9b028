"""What every record is: immutable, keyword-only, with a schema version."""

from typing import ClassVar

import msgspec


class InvalidRecord(ValueError):
    """Bytes that are not the expected record; the reader moves them to `dead_letters`."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every record."""

    TOPIC: ClassVar[str]
    SCHEMA: ClassVar[int] = 1
    schema: int = 1
