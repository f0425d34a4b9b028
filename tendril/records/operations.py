"""How the processes are: nodes, ledgers, and what nobody could read."""

from typing import Literal

from tendril.records.base import Record


class NodeStatus(Record, frozen=True, kw_only=True):
    """Heartbeat and acknowledgement of one serving replica."""

    TOPIC = "nodes"
    node: str
    at: float
    policy_version: int
    weights_digest: str
    state: Literal["serving", "staging", "refused"]
    detail: str = ""
    swap_pause_ms: float | None = None
    """Of the swap this acknowledges: how long requests were held."""
    fetched_bytes: int | None = None
    full_bytes: int | None = None
    used_delta: bool | None = None
    num_running: int = 0
    num_waiting: int = 0


class Ledger(Record, frozen=True, kw_only=True):
    """What one process read and what became of it, since its state began. Always balances."""

    TOPIC = "ledgers"
    process: str
    node: str = ""
    """Which of several such processes, each with a state of its own; empty where there is one."""
    at: float
    read: dict[str, int]
    """By kind (traces, feedback, episodes)."""
    outcomes: dict[str, dict[str, int]]
    """By kind: outcome name to count, what is still pending included."""

    @property
    def balanced(self) -> bool:
        return all(sum(self.outcomes.get(kind, {}).values()) == n for kind, n in self.read.items())


class DeadLetter(Record, frozen=True, kw_only=True):
    """A record nobody could read, kept with the reason."""

    TOPIC = "dead_letters"
    topic: str
    reason: str
    value: bytes
    at: float
