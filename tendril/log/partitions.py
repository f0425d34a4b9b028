"""Partitions: how many a topic has, and who of a group reads which: fair shares, few moves."""

from collections.abc import Mapping, Sequence

from tendril.records import Feedback, Trace

SHARED = (Trace.TOPIC, Feedback.TOPIC)
"""As many partitions each, by session; every other topic has one, so that its order is total."""


def num_partitions(topic: str, shared: int) -> int:
    """How many a topic has, where each of `SHARED` has `shared`."""
    return shared if topic in SHARED else 1


def share_out(
    numbers: Sequence[int], members: Sequence[str], owned: Mapping[str, frozenset[int]]
) -> dict[str, frozenset[int]]:
    """Each member's partition numbers, given what each owns now.

    Shares differ by at most one. A member keeps what it owns up to its share; the rest goes to
    those that lack some, in the order of `members`. A number that two members own is the first's.
    """
    least, num_larger = divmod(len(numbers), len(members))
    kept: dict[str, list[int]] = {}
    free = sorted(numbers)
    for member in sorted(members, key=lambda m: (-len(owned[m]), members.index(m))):
        larger = sum(len(held) > least for held in kept.values()) < num_larger
        mine = [number for number in free if number in owned[member]][: least + larger]
        kept[member] = mine
        free = [number for number in free if number not in mine]
    for quota in (least, least + 1):
        for member in members:
            while free and len(kept[member]) < quota:
                kept[member].append(free.pop(0))
    return {member: frozenset(held) for member, held in kept.items()}


def without_moves(
    shares: Mapping[str, frozenset[int]], owned: Mapping[str, frozenset[int]]
) -> dict[str, frozenset[int]]:
    """`shares` less what another member still owns: that comes when its owner has given it up."""
    return {
        member: frozenset(
            number
            for number in held
            if not any(number in owned[other] for other in owned if other != member)
        )
        for member, held in shares.items()
    }
