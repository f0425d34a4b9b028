"""Rows for tests of the lake: feedback whose log offset says which row it is."""

from pathlib import Path

import pyarrow as pa

from tendril.lake.lake import Lake
from tendril.lake.offsets import app_id
from tendril.lake.rows import feedback_to_arrow
from tendril.log import LogRecord
from tests.builders import make_feedback

NOON_2024 = 1_720_008_000.0  # 2024-07-03 12:00 UTC
APP = app_id("feedback", 0)


def feedback_rows(
    first: int, after_last: int, *, users: int = 3, at: float = NOON_2024, partition: int = 0
) -> pa.Table:
    """One row for each offset; row n is of user n modulo `users`."""
    offsets = range(first, after_last)
    events = [
        make_feedback(event_id=f"e{n}", user_key=user(n % users), client_seq=n, ingested_at=at)
        for n in offsets
    ]
    return feedback_to_arrow(
        events, [LogRecord("feedback", partition, n, "s1", b"", at) for n in offsets]
    )


def user(number: int) -> str:
    """A key that no other text in a file could be."""
    return f"user-key-{number:04d}"


def offsets_in(lake: Lake) -> list[int]:
    found: list[int] = lake.read("feedback", ["offset"])["offset"].to_pylist()
    return sorted(found)


def files_with(folder: Path, text: str) -> list[str]:
    """Files below `folder` whose bytes hold `text`."""
    return [
        str(file.relative_to(folder))
        for file in sorted(folder.rglob("*"))
        if file.is_file() and text.encode() in file.read_bytes()
    ]
