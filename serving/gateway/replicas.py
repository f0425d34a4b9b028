"""The replicas behind a gateway: which are ready and how loaded, asked again and again."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import aiohttp
import msgspec

from tendril.settings import GatewaySettings, ReplicaSettings
from tendril.telemetry import Telemetry

Group: TypeAlias = Literal["live", "canary"]
GROUPS: tuple[Group, ...] = ("live", "canary")
MAX_HEALTH_BYTES = 65_536
MAX_LATE_POLLS = 2
"""A replica that answers late this often in a row counts as gone; one that is away, at once."""


class Health(msgspec.Struct, frozen=True):
    """What routing needs of a replica's `/health`."""

    num_running: int = 0
    num_waiting: int = 0
    draining: bool = False


@dataclass(slots=True, eq=False)
class Replica:
    """One serving node, as this gateway sees it."""

    url: str
    group: Group
    ready: bool = False
    running: int = 0
    """Requests that this gateway has there now."""
    reported: int = 0
    """Running and waiting when it was last asked, those of other gateways included."""
    running_when_reported: int = 0
    late_polls: int = 0

    @property
    def load(self) -> int:
        """Requests there now, as far as known: what it said, plus our own since."""
        return max(self.running, self.reported + self.running - self.running_when_reported)


class ReplicaPool:
    """All replicas, and the loop that asks them."""

    def __init__(
        self,
        replicas: Iterable[ReplicaSettings],
        settings: GatewaySettings,
        session: aiohttp.ClientSession,
        telemetry: Telemetry,
    ) -> None:
        self.replicas = [Replica(r.url.rstrip("/"), r.group) for r in replicas]
        self._settings, self._session, self._telemetry = settings, session, telemetry

    def ready(self, group: Group) -> list[Replica]:
        return [r for r in self.replicas if r.ready and r.group == group]

    async def follow(self) -> None:
        """Ask all of them, for ever."""
        while True:
            await self.ask_all()
            await asyncio.sleep(self._settings.poll_interval_s)

    async def ask_all(self) -> None:
        await asyncio.gather(*map(self._ask, self.replicas))
        for group in GROUPS:
            self._telemetry.gauge("tendril.gateway.replicas", len(self.ready(group)), group=group)

    async def _ask(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(self._settings.poll_timeout_s):
                health = await self._health(replica)
        except TimeoutError:
            replica.late_polls += 1
            replica.ready = replica.ready and replica.late_polls < MAX_LATE_POLLS
            return
        except (aiohttp.ClientError, OSError, msgspec.DecodeError, UnicodeError):
            replica.ready = False
            return
        replica.late_polls = 0
        replica.ready = health is not None and not health.draining
        if health is not None:
            replica.reported = max(0, health.num_running) + max(0, health.num_waiting)
            replica.running_when_reported = replica.running

    async def _health(self, replica: Replica) -> Health | None:
        """What it says of itself, None where it is not ready."""
        async with self._session.get(f"{replica.url}/ready", allow_redirects=False) as reply:
            if reply.status != 200:
                return None
        async with self._session.get(f"{replica.url}/health", allow_redirects=False) as reply:
            body = await reply.content.read(MAX_HEALTH_BYTES)
            return msgspec.json.decode(body, type=Health) if reply.status == 200 else None
