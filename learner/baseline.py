"""Expected reward of a context: a hierarchy of discounted means, for decisions never repeated.

Live prompts do not repeat, so SPO's tracker per prompt (arXiv:2509.13232) becomes one per bucket
of contexts, shrunk to its parent bucket. With rewards in [-1, 1], each bucket is a Beta posterior
on (1 + reward) / 2 with discounted evidence, whose prior is the parent's mean. Of the evidence,
a - b is the sum of rewards and a + b the sum of weights: these two are stored.

Buckets are keyed ONLY on what was known before the action. A baseline that also knows the action
(shown or silent) learns each action's own mean reward and subtracts it, so no action looks better
than another and the show threshold is lost. For the same reason a key may not hold whether the
decision was forced: the exploration weight averages over that draw.
"""

from collections import OrderedDict
from typing import Any

import msgspec

from tendril.ids import digest_of
from tendril.records import Episode

PRIOR_REWARD = 0.0  # of the coarsest bucket before any evidence: neutral


class Bucket(msgspec.Struct):
    """Evidence of one bucket, discounted to the moment of its last update."""

    reward_sum: float = 0.0
    weight_sum: float = 0.0
    updated_at: int = 0
    """In observations of the whole baseline."""


class Baseline:
    """Tracks the expected reward by bucket. Not safe for use by several threads.

    Evidence halves every `half_life` observations of the whole baseline, in whichever bucket
    they fall: what ages it is the policy moving on, and that moves with all of them.
    """

    def __init__(
        self, *, half_life: float, pseudo_count: float = 8.0, max_buckets: int = 16_384
    ) -> None:
        for name, value in (("half_life", half_life), ("pseudo_count", pseudo_count)):
            if not value > 0:
                raise ValueError(f"baseline {name}: expected a positive number, got {value}")
        self._half_life = half_life
        self._pseudo_count = pseudo_count
        self._max_buckets = max_buckets
        self._num_observations = 0
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()  # least recently updated first

    def predict(self, keys: tuple[str, ...]) -> float:
        """Expected reward of the finest of `keys`, which run from coarse to fine.

        Each bucket is the mean of its evidence and `pseudo_count` observations of its parent's
        value; unknown buckets equal their parent. Call it before `update` with the same decision.
        """
        value = PRIOR_REWARD
        for key in keys:
            bucket = self._buckets.get(key)
            if bucket is not None:
                kept = self._discount(bucket)
                prior_sum = self._pseudo_count * value
                evidence = kept * bucket.weight_sum + self._pseudo_count
                value = (kept * bucket.reward_sum + prior_sum) / evidence
        return value

    def update(self, keys: tuple[str, ...], reward: float, weight: float = 1.0) -> None:
        """Add one observation to every bucket of `keys` and age all others by one.

        `weight` is the loss's: exploration weight times observation weight. Raises ValueError for
        a reward outside [-1, 1] or a negative weight.
        """
        if not -1 <= reward <= 1:
            raise ValueError(f"baseline {keys}: expected a reward in [-1, 1], got {reward}")
        if not 0 <= weight < float("inf"):
            raise ValueError(f"baseline {keys}: expected a weight >= 0, got {weight}")
        self._num_observations += 1
        for key in reversed(keys):  # coarse last, so that it is evicted last
            bucket = self._buckets.setdefault(key, Bucket())
            kept = self._discount(bucket)
            bucket.reward_sum = kept * bucket.reward_sum + weight * reward
            bucket.weight_sum = kept * bucket.weight_sum + weight
            bucket.updated_at = self._num_observations
            self._buckets.move_to_end(key)
        while len(self._buckets) > self._max_buckets:
            self._buckets.popitem(last=False)

    def state(self) -> dict[str, Any]:
        """What was learned, in plain values for the checkpoint: exact in msgpack and JSON."""
        return {
            "num_observations": self._num_observations,
            "buckets": [
                [key, bucket.reward_sum, bucket.weight_sum, bucket.updated_at]
                for key, bucket in self._buckets.items()
            ],
        }

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        *,
        half_life: float,
        pseudo_count: float = 8.0,
        max_buckets: int = 16_384,
    ) -> "Baseline":
        """The baseline that `state` was taken from; with its settings it goes on bit for bit."""
        baseline = cls(half_life=half_life, pseudo_count=pseudo_count, max_buckets=max_buckets)
        baseline._num_observations = state["num_observations"]
        for key, *evidence in state["buckets"]:
            baseline._buckets[key] = Bucket(*evidence)
        return baseline

    def _discount(self, bucket: Bucket) -> float:
        age = self._num_observations - bucket.updated_at
        return float(2.0 ** (-age / self._half_life))


def context_keys(episode: Episode) -> tuple[str, ...]:
    """Baseline keys of an episode, coarse to fine: all, tenant, route, last prompt token.

    Hashes of what was known before its first action, and of nothing else: one key names the
    whole path down to it. Raises ValueError for an episode without segments.
    """
    if not episode.segments:
        raise ValueError(f"episode {episode.episode_id}: expected at least 1 segment, got 0")
    last_token_ids = episode.segments[0].prompt_token_ids[-1:]
    path = ("all", episode.tenant, episode.route, ",".join(map(str, last_token_ids)))
    return tuple(digest_of(*path[:depth]) for depth in range(1, len(path) + 1))
