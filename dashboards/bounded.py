"""Memory that does not grow: recent ids, counts of recent seconds, a curve of mergeable bins."""

import math
from collections.abc import Iterator
from typing import Generic, TypeVar

from dashboards.tally import Tally

V = TypeVar("V")


class Recent(Generic[V]):
    """The newest `limit` entries by id; the oldest are forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[str, V] = {}

    def add(self, key: str, value: V) -> bool:
        """Remember `key`; False where it is known already (its value then stays)."""
        if key in self._values:
            return False
        self._values[key] = value
        if len(self._values) > self._limit:
            del self._values[next(iter(self._values))]
        return True

    def get(self, key: str | None) -> V | None:
        return None if key is None else self._values.get(key)

    def __len__(self) -> int:
        return len(self._values)


class RecentCount:
    """How often something happened in the last `window_s` whole seconds."""

    def __init__(self, window_s: int) -> None:
        self._window_s = window_s
        self._by_second: dict[int, int] = {}

    def add(self, at: float) -> None:
        self._by_second[int(at)] = self._by_second.get(int(at), 0) + 1
        if len(self._by_second) > 2 * self._window_s:
            oldest = max(self._by_second) - self._window_s
            self._by_second = {s: n for s, n in self._by_second.items() if s >= oldest}

    def count(self, now: float) -> int:
        """Over [now - window, now), both cut to whole seconds."""
        last = int(now)
        return sum(n for s, n in self._by_second.items() if last - self._window_s <= s < last)


class Curve:
    """Tallies by time. Beyond `max_bins`, bins double in width and neighbours are merged."""

    def __init__(self, bin_s: float = 10.0, max_bins: int = 500) -> None:
        self.bin_s = bin_s
        self._max_bins = max_bins
        self._bins: dict[int, Tally] = {}

    def at(self, time_s: float) -> Tally:
        """The tally of the bin that holds `time_s`, to count into."""
        while True:
            index = math.floor(time_s / self.bin_s)
            if index in self._bins:
                return self._bins[index]
            if len(self._bins) < self._max_bins:
                return self._bins.setdefault(index, Tally())
            self._widen()

    def _widen(self) -> None:
        merged: dict[int, Tally] = {}
        for index, tally in self._bins.items():
            merged.setdefault(index // 2, Tally()).merge(tally)
        self._bins, self.bin_s = merged, self.bin_s * 2

    def __iter__(self) -> Iterator[tuple[float, Tally]]:
        """(start of the bin, tally), oldest first."""
        for index in sorted(self._bins):
            yield index * self.bin_s, self._bins[index]

    def __len__(self) -> int:
        return len(self._bins)
