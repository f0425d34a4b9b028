"""Requests and tokens a minute, a key.

Counted in this process: N copies of the gateway let through up to N times a quota. Windows slide
(the last minute, weighted), so nobody gets two quotas by waiting for the turn of a minute.
"""

import math
import time
from functools import lru_cache

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from serving.api.errors import Refused
from serving.keys import ApplicationKey


class Quotas:
    """What each key has used in the last minute."""

    def __init__(self, default_requests_per_minute: int | None) -> None:
        self._default = default_requests_per_minute
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    def take_request(self, key: ApplicationKey) -> None:
        """Count one request; raises `Refused` 429 over the quota."""
        self._take(key, key.requests_per_minute or self._default, 1, "requests")

    def take_tokens(self, key: ApplicationKey, num_tokens: int) -> None:
        """Count tokens before they are spent; raises `Refused` 429 over the quota."""
        self._take(key, key.tokens_per_minute, num_tokens, "tokens")

    def _take(self, key: ApplicationKey, quota: int | None, cost: int, unit: str) -> None:
        if quota is None:
            return
        item = _per_minute(quota)
        if self._limiter.hit(item, key.tenant, key.name, unit, cost=cost):
            return
        reset_at = self._limiter.get_window_stats(item, key.tenant, key.name, unit).reset_time
        raise Refused(
            429, "quota_exceeded", f"key {key.name}: expected at most {quota} {unit} a minute, got "
            f"{cost} more",
            retry_s=min(60, max(1, math.ceil(reset_at - time.time()))),
        )  # fmt: skip


@lru_cache(maxsize=4096)
def _per_minute(amount: int) -> RateLimitItem:
    return RateLimitItemPerMinute(amount)
