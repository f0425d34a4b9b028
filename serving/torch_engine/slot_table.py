"""Which request holds which slot, and what the other slots still know.

Row i of a step is slot i, so that attention reads keys and values in place. A slot that a request
has left keeps its tokens; a new prompt starts from the longest prefix that any slot holds. Only
within one policy version: keys and values of other weights would give wrong log-probs.
"""

from bisect import bisect_left
from collections.abc import Sequence

from serving.torch_engine.kv_slots import KeyValueSlots
from serving.torch_engine.running import Running

MIN_SHARED_TOKENS = 16
"""A shorter shared prefix is not worth a copy, still less a wait."""


class SlotTable:
    """Requests that run (slot i holds `active[i]`), then slots with what was left in them."""

    def __init__(self, cache: KeyValueSlots) -> None:
        self.cache = cache
        self.active: list[Running] = []
        self._kept: list[list[int]] = [[] for _ in range(cache.num_slots)]
        self._left_at = [0] * cache.num_slots
        self._num_left = 0
        self.num_reused_tokens = 0

    def add(self, running: Running) -> None:
        """Give it the first free slot, with the longest known prefix of its tokens in it."""
        slot = len(self.active)
        source, num_shared = self._longest_prefix(running.token_ids)
        given_up = min(range(slot, self.cache.num_slots), key=self._left_at.__getitem__)
        if source >= slot and num_shared == len(self._kept[source]):
            given_up = source  # what it held lives on in this request
        self._exchange(given_up, slot)
        source = {given_up: slot, slot: given_up}.get(source, source)
        if num_shared and source != slot:
            self.cache.copy(source, slot, num_shared)
        self._kept[slot] = []
        self.num_reused_tokens += num_shared
        running.num_cached, running.is_reusable = num_shared, True
        self.active.append(running)

    def remove(self, running: Running) -> None:
        """Its slot is free; the last row takes its place, and what it held is kept at the end."""
        slot, last = self.active.index(running), len(self.active) - 1
        kept = running.token_ids[: running.num_cached] if running.is_reusable else []
        if slot != last:
            moved = self.active[last]
            self.cache.exchange(slot, len(kept), last, moved.num_cached)
            self.active[slot] = moved
        self.active.pop()
        self._num_left += 1
        self._kept[last], self._left_at[last] = kept, self._num_left
        running.num_cached = 0

    def forget(self) -> None:
        """The weights have changed: nothing computed so far may start another request."""
        self._kept = [[] for _ in self._kept]
        for running in self.active:
            running.is_reusable = False

    def gains_by_waiting(self, running: Running, wave: Sequence[Running]) -> bool:
        """Whether a request of this `wave`, not computed yet, will hold more of its prefix."""
        ids = running.token_ids
        coming = max((num_shared(ids, r.token_ids, len(r.token_ids)) for r in wave), default=0)
        return coming > self._longest_prefix(ids)[1]

    def _longest_prefix(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """(slot, number of tokens); 0 tokens where nothing is worth a copy."""
        best = (len(self.active), 0)
        for slot in range(self.cache.num_slots):
            if slot >= len(self.active):
                num = num_shared(token_ids, self._kept[slot], len(self._kept[slot]))
            elif (holder := self.active[slot]).is_reusable:
                num = num_shared(token_ids, holder.token_ids, holder.num_cached)
            else:
                continue
            if num > best[1]:
                best = (slot, num)
        return best

    def _exchange(self, a: int, b: int) -> None:
        """Two free slots change places."""
        if a == b:
            return
        self.cache.exchange(a, len(self._kept[a]), b, len(self._kept[b]))
        self._kept[a], self._kept[b] = self._kept[b], self._kept[a]
        self._left_at[a], self._left_at[b] = self._left_at[b], self._left_at[a]


def num_shared(token_ids: Sequence[int], others: Sequence[int], num_known: int) -> int:
    """Length of the shared prefix within the `num_known` first of `others`; 0 below the minimum.

    Never all of `token_ids`: the last one has to be computed again, to have its logits.
    """
    limit = min(len(token_ids) - 1, num_known)
    if limit < MIN_SHARED_TOKENS or token_ids[:MIN_SHARED_TOKENS] != others[:MIN_SHARED_TOKENS]:
        return 0
    return bisect_left(range(1, limit + 1), True, key=lambda n: token_ids[:n] != others[:n])
