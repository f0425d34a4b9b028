"""Observations for the learned reward, and the split that keeps users and times apart."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from tendril.ids import digest_of

CALIBRATION_SHARE, LATER_SHARE = 0.2, 0.3


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One trace: what was known early, what the recipe then said, and the late truth."""

    user_key: str
    served_at: float
    known_at: float
    """When `good` was known: 24 h after acceptance by default."""
    features: dict[str, float | None]
    """Early signals by name; None was not observed."""
    default_reward: float
    """Of the linear recipe on the same early signals, in [-1, 1]."""
    good: bool


def features_of(
    components: Mapping[str, float], *, latency_s: float, num_tokens: int
) -> dict[str, float | None]:
    """What an early look knows: the reward's components, and what the reply cost."""
    return {**components, "latency_s": latency_s, "num_tokens": float(num_tokens)}


class Split(NamedTuple):
    """Three sets that share no user; `later` starts after the truth of the others was known."""

    train: list[Observation]
    calibrate: list[Observation]
    later: list[Observation]


def split(rows: Sequence[Observation], cutoff_s: float, *, salt: str = "learned") -> Split:
    """By a hash of the user and by time: what was known by `cutoff_s`, what was served after."""
    parts = Split([], [], [])
    for row in sorted(rows, key=lambda r: (r.served_at, r.user_key)):
        place = int(digest_of(salt, row.user_key)[:8], 16) / 2**32
        if place < LATER_SHARE:
            if row.served_at >= cutoff_s:
                parts.later.append(row)
        elif row.known_at <= cutoff_s:
            is_calibration = place < LATER_SHARE + CALIBRATION_SHARE
            (parts.calibrate if is_calibration else parts.train).append(row)
    return parts


def table(rows: Sequence[Observation], names: Sequence[str]) -> list[list[float]]:
    """[rows, names]: the features in the order of `names`, NaN where not observed."""
    return [
        [math.nan if (value := row.features.get(name)) is None else value for name in names]
        for row in rows
    ]
