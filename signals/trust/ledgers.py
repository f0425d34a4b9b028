"""What was read between two moments, and what became of it: differences of ledgers."""

from collections.abc import Mapping

from tendril.log import EventLog, drain
from tendril.records import InvalidRecord, Ledger, decode

Counts = Mapping[str, Mapping[str, int]]
"""By kind: how many were `read`, and met each fate."""


class LedgerFollower:
    """Reads `ledger` from its beginning, beside all groups."""

    def __init__(self, log: EventLog) -> None:
        self._reader = log.reader(None, (Ledger.TOPIC,))
        self._newest: dict[str, Ledger] = {}
        self._before: dict[str, dict[str, int]] | None = None

    def follow(self) -> None:
        """Read what is new. Raises `LogUnavailable`."""
        for record in drain(self._reader):
            try:
                ledger = decode(Ledger, record.value)
            except InvalidRecord:
                continue  # it counts nothing
            if ledger.process == "signals":
                self._newest[ledger.node] = ledger

    def shares(self) -> Counts:
        """What was added since the last call, over all partitions; nothing in the first."""
        now: dict[str, dict[str, int]] = {}
        for ledger in self._newest.values():
            for kind, num_read in ledger.read.items():
                sums = now.setdefault(kind, {})
                for fate, n in (ledger.outcomes.get(kind, {}) | {"read": num_read}).items():
                    sums[fate] = sums.get(fate, 0) + n
        before, self._before = self._before, now
        if before is None:
            return {}
        return {
            kind: {fate: max(0, n - before.get(kind, {}).get(fate, 0)) for fate, n in sums.items()}
            for kind, sums in now.items()
        }

    def close(self) -> None:
        self._reader.close()
