"""Keeps a lake quick to read: many small files become few, replaced ones go once nobody reads them.

Runs beside the writers, in a thread with a `Lake` of its own; a kill at any point costs nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tendril.lake.lake import Lake
from tendril.lake.schema import table_specs


class Kept(NamedTuple):
    """What was done to one table."""

    table: str
    num_files_before: int
    num_files_after: int
    num_files_removed: int
    """Replaced or never committed, and old enough."""


def keep_up(lake: Lake, *, compact_after_files: int, keep_replaced_s: float) -> Iterator[Kept]:
    """Compact each table with more small files than that; vacuum each that has something to go.

    A small file is one that shares its partition with others. Raises `LakeUnavailable`.
    """
    for table in table_specs():
        before = after = lake.num_files(table)
        if before - lake.num_partitions(table) >= compact_after_files:
            lake.compact(table)
            after = lake.num_files(table)
        removed = lake.vacuum(table, keep_replaced_s)
        if removed or after < before:
            yield Kept(table, before, after, len(removed))
