"""Log offsets as application transactions: what a commit says about where on the log it stands."""

from collections.abc import Mapping

from tendril.lake.results import OffsetsMoved


def app_id(topic: str, partition: int, process: str = "signals") -> str:
    """Under which name a commit carries the next offset of one partition."""
    return f"{process}/{topic}/{partition}"


def is_done(
    table: str, held: Mapping[str, int], offsets: Mapping[str, int], after: Mapping[str, int]
) -> bool:
    """Whether an append up to `offsets` has happened before.

    `held`: what the table says, `after`: what it said when the rows were made. Raises
    `OffsetsMoved` where the two differ, or where only a part has happened.
    """
    if offsets and all(held.get(one, -1) >= offset for one, offset in offsets.items()):
        return True
    for one, offset in offsets.items():
        if held.get(one) != after.get(one) or held.get(one, -1) > offset:
            raise OffsetsMoved(
                f"lake table {table}: {one} is at {held.get(one)}, expected {after.get(one)} "
                f"before an append up to {offset}"
            )
    return False
