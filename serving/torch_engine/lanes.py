"""Who waits and who comes next: online requests first, offline ones in the slots lent to them."""

from collections import deque
from collections.abc import Sequence

from serving.engine import check_queue
from serving.torch_engine.running import Running
from tendril.records import Lane


class Lanes:
    """A bounded queue for each lane, so that a flood of one cannot turn the other away."""

    def __init__(self, max_waiting: int, lent_slots: int) -> None:
        self._max_waiting = max_waiting
        self._lent_slots = lent_slots
        self._waiting: dict[Lane, deque[Running]] = {"online": deque(), "offline": deque()}

    def put(self, running: Running) -> None:
        """At the end of its lane's queue; raises `EngineBusy` where that is full."""
        self.check_room(running.request.lane)
        self._waiting[running.request.lane].append(running)

    def check_room(self, lane: Lane) -> None:
        """Raises `EngineBusy` where the lane's queue is full."""
        check_queue(lane, len(self._waiting[lane]), self._max_waiting, self._lent_slots)

    def put_back(self, running: Running) -> None:
        """At the head of its queue: it was next, or has tokens already."""
        self._waiting[running.request.lane].appendleft(running)

    def discard(self, running: Running) -> None:
        """It no longer waits, if it did."""
        queue = self._waiting[running.request.lane]
        if running in queue:
            queue.remove(running)

    def take(self, active: Sequence[Running], num_slots: int) -> Running | None:
        """The request to start now beside the `active` ones, if any may.

        An online one may start in a full engine where an offline one can be set back for it.
        """
        num_offline = sum(running.request.lane == "offline" for running in active)
        is_full = len(active) >= num_slots
        if online := self._waiting["online"]:
            return online.popleft() if num_offline or not is_full else None
        if (offline := self._waiting["offline"]) and not is_full and num_offline < self._lent_slots:
            return offline.popleft()
        return None

    def drain(self) -> list[Running]:
        """All that wait, which then no longer do."""
        drained = [running for queue in self._waiting.values() for running in queue]
        for queue in self._waiting.values():
            queue.clear()
        return drained

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))


def latest_offline(active: Sequence[Running]) -> Running:
    """The one to set back for an online request: those before it are nearer to their end."""
    offline = [running for running in active if running.request.lane == "offline"]
    return max(offline, key=lambda running: running.arrived_at)
