"""Where a request goes: its experiment group, then an order of replicas. Pure functions."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from serving.gateway.replicas import Group, Replica

LOAD_FACTOR, LOAD_SLACK = 1.25, 4
"""A preferred replica keeps a request while its load is at most 1.25 times the least, plus 4."""


class Assignment(NamedTuple):
    """An arm of the experiment, and the probability with which it was chosen."""

    group: Group
    propensity: float


class Attempt(NamedTuple):
    """One replica to try, and what it is told."""

    replica: Replica
    assignment: Assignment | None


def uniform(*parts: str) -> float:
    """A number in [0, 1) that is always the same for the same `parts`."""
    return _hash("\0".join(parts)) / 2**64


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def assign(unit: float, canary_share: float, *, live: bool, canary: bool) -> Assignment:
    """The group of a user at `unit` in [0, 1); `live`, `canary`: has that group a ready replica.

    With one group left everybody goes there, and nothing was chosen: propensity 1.
    """
    if not canary or canary_share == 0:
        return Assignment("live", 1.0)
    if not live:
        return Assignment("canary", 1.0)
    if unit < canary_share:
        return Assignment("canary", canary_share)
    return Assignment("live", 1.0 - canary_share)


def by_preference(replicas: Sequence[Replica], affinity: str) -> list[Replica]:
    """Best first by rendezvous hash of `affinity`: a replica that goes moves only its own."""
    if len(replicas) < 2:
        return list(replicas)
    return sorted(replicas, key=lambda r: _hash(f"{affinity}\0{r.url}"), reverse=True)


def by_load_and_preference(replicas: Sequence[Replica], affinity: str) -> list[Replica]:
    """As `by_preference`, those clearly above the least loaded last, by load.

    Consistent hashing with bounded loads, arXiv:1608.01350, with the bound on the least load.
    """
    if len(replicas) < 2:
        return list(replicas)
    bound = LOAD_FACTOR * min(r.load for r in replicas) + LOAD_SLACK
    preferred = by_preference(replicas, affinity)
    return sorted(preferred, key=lambda r: r.load if r.load > bound else 0)


def attempts_for(
    live: Sequence[Replica],
    canary: Sequence[Replica],
    *,
    unit: float,
    canary_share: float,
    affinity: str,
) -> list[Attempt]:
    """Replicas to try in turn: those of the user's group, then the other group's.

    One that answers for the other group does so for lack of choice: propensity 1.
    """
    chosen = assign(unit, canary_share, live=bool(live), canary=bool(canary))
    own, other = (live, canary) if chosen.group == "live" else (canary, live)
    fallback = Assignment("canary" if chosen.group == "live" else "live", 1.0)
    return [
        *(Attempt(r, chosen) for r in by_load_and_preference(own, affinity)),
        *(Attempt(r, fallback) for r in by_load_and_preference(other, affinity)),
    ]
