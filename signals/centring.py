"""Centring: a reward less the mean of its bucket, so that hard surfaces are not bad policies.

A fit uses only rewards known when it was made, is named by its digest, and shrinks small buckets
towards the mean of all: (n * bucket mean + m * overall mean) / (n + m).
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tendril.ids import digest_of

PRIOR_EPISODES = 50.0
"""m: a bucket of so many episodes is believed half."""


class Observed(NamedTuple):
    """A known reward, its weight, and the bucket it fell into."""

    bucket: str
    reward: float
    weight: float = 1.0


class Centres(msgspec.Struct, frozen=True, kw_only=True):
    """Mean reward by bucket, as of `fitted_at`; without any, nothing is centred."""

    fitted_at: float = 0.0
    overall: float = 0.0
    by_bucket: dict[str, float] = {}

    @property
    def digest(self) -> str:
        return digest_of("centres", msgspec.json.encode(self, order="sorted").decode())


def bucket_of(surface: str, language: str | None = None) -> str:
    """`editor/python`; `-` for a language that nobody named."""
    return f"{surface}/{language or '-'}"


def fit_centres(observed: Iterable[Observed], *, fitted_at: float) -> Centres:
    """The shrunken weighted mean of each bucket; sums are exact, so order does not matter."""
    rows: dict[str, list[Observed]] = {}
    for one in observed:
        if not (math.isfinite(one.reward) and math.isfinite(one.weight)):
            continue  # nothing follows from it
        rows.setdefault(one.bucket, []).append(one)
    every = [one for bucket in rows.values() for one in bucket]
    total = math.fsum(one.weight for one in every)
    if total == 0:
        return Centres(fitted_at=fitted_at)
    overall = math.fsum(one.weight * one.reward for one in every) / total
    by_bucket = {
        bucket: (math.fsum(one.weight * one.reward for one in rows[bucket])
                 + PRIOR_EPISODES * overall)
        / (math.fsum(one.weight for one in rows[bucket]) + PRIOR_EPISODES)
        for bucket in sorted(rows)
    }  # fmt: skip
    return Centres(fitted_at=fitted_at, overall=overall, by_bucket=by_bucket)


def centred(reward: float | None, bucket: str, centres: Centres) -> float | None:
    """`reward` less its bucket's mean, or the overall one for a bucket never seen; None stays."""
    return None if reward is None else reward - centres.by_bucket.get(bucket, centres.overall)
