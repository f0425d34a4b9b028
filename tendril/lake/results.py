"""What the lake answers: counts of a deletion or compaction, and its refusals."""

from typing import NamedTuple


class LakeUnavailable(RuntimeError):
    """The store cannot be reached, is full or refuses; once mended, the same call works."""


class OffsetsMoved(RuntimeError):
    """Another writer has committed some of these offsets: read `committed`, leave them out."""


class UnknownTable(LookupError):
    """No table of that name has a row yet, or ever will."""


class QueryRefused(ValueError):
    """SQL that is wrong, or that would do more than read the lake."""


class Deleted(NamedTuple):
    """What one deletion did to one table."""

    num_rows_before: int
    """Of these users."""
    num_rows_after: int
    """Zero, unless a writer appends rows of theirs faster than they are deleted."""
    files: tuple[str, ...]
    """Data files that are gone, below the table."""
    num_unreferenced: int
    """Files that no commit names, such as a killed writer's, which may hold rows of theirs:
    `vacuum` removes them once they are old enough to be nobody's running append."""


class Compacted(NamedTuple):
    """How many files one compaction read and wrote."""

    num_files_before: int
    num_files_after: int
