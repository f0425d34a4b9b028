"""What was read between two moments, and what became of it: differences of ledgers."""

from collections.abc import Mapping

from tendril.log import EventLog, drain, readable
from tendril.records import Ledger

Counts = Mapping[str, Mapping[str, int]]
"""By kind: how many were `read`, and met each fate."""


class LedgerFollower:
    """Reads `ledger` from its beginning, beside all groups."""

    def __init__(self, log: EventLog) -> None:
        self._reader = log.reader(None, (Ledger.TOPIC,))
        self._newest: dict[str, Ledger] = {}
        self._marked: dict[str, dict[str, int]] | None = None

    def follow(self) -> None:
        """Read what is new. Raises `LogUnavailable`."""
        for ledger, _ in readable(drain(self._reader), Ledger):
            if ledger.process == "signals":
                self._newest[ledger.node] = ledger

    def mark(self) -> None:
        """Count from here on."""
        self._marked = self._sums()

    def added(self) -> Counts:
        """What was added since the mark, over all partitions; nothing before the first one."""
        before = self._marked
        if before is None:
            return {}
        return {
            kind: {fate: max(0, n - before.get(kind, {}).get(fate, 0)) for fate, n in sums.items()}
            for kind, sums in self._sums().items()
        }

    def _sums(self) -> dict[str, dict[str, int]]:
        now: dict[str, dict[str, int]] = {}
        for ledger in self._newest.values():
            for kind, num_read in ledger.read.items():
                sums = now.setdefault(kind, {})
                for fate, n in (ledger.outcomes.get(kind, {}) | {"read": num_read}).items():
                    sums[fate] = sums.get(fate, 0) + n
        return now

    def close(self) -> None:
        self._reader.close()
