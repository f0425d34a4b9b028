"""The parts of one serving node, put together once and handed to the door and the routes."""

import random
import threading
from dataclasses import dataclass, field

from fastapi import Request
from starlette.datastructures import Headers

from serving.access import header_text, key_of
from serving.api.errors import Refused, refusal
from serving.engine import Engine, EngineBusy
from serving.feedback.tokens import FeedbackTokens
from serving.keys import ApplicationKey, KeyRing
from serving.recorder import Recorder
from serving.sessions import SessionIndex
from serving.spool import Spool
from serving.text import TextCodec
from tendril.consent import ConsentFollower
from tendril.ids import tenant_user_key
from tendril.records import Lane, Trace
from tendril.settings import ServingSettings
from tendril.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNode:
    """Everything a route may need; the app holds one as `app.state.node`."""

    name: str
    settings: ServingSettings
    engine: Engine
    codec: TextCodec
    recorder: Recorder
    spool: Spool
    tokens: FeedbackTokens
    secret: bytes
    keys: KeyRing
    sessions: SessionIndex
    consents: ConsentFollower
    silence_token_id: int | None
    random: random.Random
    telemetry: Telemetry
    draining: threading.Event = field(default_factory=threading.Event)
    """Set: requests that run go on, new ones are sent to another replica."""

    def authenticate(self, headers: Headers) -> ApplicationKey:
        """The caller's key. Raises `Refused` 401 without a known one."""
        return key_of(
            self.keys, header_text(headers, "authorization"), header_text(headers, "x-api-key")
        )

    def user_key(self, tenant: str, user: str | None) -> str:
        """The hash under which a user is known; those without a name are one in each tenant."""
        return tenant_user_key(tenant, user, self.secret)

    def check_ready(self) -> None:
        """Raises `Refused` 503 while draining, or where no trace could be kept."""
        if self.draining.is_set():
            raise Refused(503, "draining", "this replica is shutting down", retry_s=1)
        if self.spool.is_full:
            raise Refused(
                503, "log_unavailable", f"{self.spool.depth} records wait for the log", retry_s=5
            )
        if self.spool.is_refusing:
            raise Refused(503, "log_unavailable", "the disk takes no records", retry_s=5)

    def admit(self, lane: Lane) -> None:
        """Raises `Refused`, counted: 503 where the node is not ready, 429 when it is full."""
        if self.spool.is_full and not self.draining.is_set():
            self.count_refused("spool full")
        self.check_ready()
        try:
            self.engine.check_room(lane)
        except EngineBusy as error:
            self.count_refused("engine busy")
            raise refusal(error) from error

    def count_refused(self, reason: str) -> None:
        """Of a request that left no trace."""
        self.telemetry.count("tendril.serving.refused", reason=reason)
        self.spool.refuse(Trace.TOPIC, reason)


def node_of(request: Request) -> ServingNode:
    """The node behind this app."""
    node: ServingNode = request.app.state.node
    return node
