"""The parts of one serving node, put together once and handed to the door and the routes."""

import random
import threading
from dataclasses import dataclass, field

from fastapi import Request
from starlette.datastructures import Headers

from serving.api.errors import Refused
from serving.engine import Engine, EngineBusy
from serving.feedback.tokens import FeedbackTokens
from serving.keys import ApplicationKey, KeyRing
from serving.recorder import Recorder
from serving.sessions import SessionIndex
from serving.spool import Spool
from serving.text import TextCodec
from tendril.records import Lane, Trace
from tendril.settings import ServingSettings
from tendril.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNode:
    """Everything a route may need; the app holds one as `app.state.node`."""

    settings: ServingSettings
    engine: Engine
    codec: TextCodec
    recorder: Recorder
    spool: Spool
    tokens: FeedbackTokens
    secret: bytes
    keys: KeyRing
    sessions: SessionIndex
    silence_token_id: int | None
    random: random.Random
    telemetry: Telemetry
    draining: threading.Event = field(default_factory=threading.Event)
    """Set: requests that run go on, new ones are sent to another replica."""

    def authenticate(self, headers: Headers) -> ApplicationKey:
        """The caller's key. Raises `Refused` 401 without a known one."""
        authorization = headers.get("authorization", "").encode("latin-1")
        given = authorization.decode(errors="replace")
        if not given and "x-api-key" in headers:  # as Anthropic's clients send it
            given = f"Bearer {headers['x-api-key']}"
        key = self.keys.authenticate(given)
        if key is None:
            raise Refused(
                401, "invalid_api_key",
                "Authorization: expected 'Bearer <application key>', got "
                + ("an unknown key" if given else "none"),
            )  # fmt: skip
        return key

    def admit(self, lane: Lane = "online") -> None:
        """Raises `Refused`: 503 while draining or where no trace could be kept, 429 when full."""
        if self.draining.is_set():
            raise Refused(503, "draining", "this replica is shutting down", retry_s=1)
        if self.spool.is_full:
            self.spool.refuse(Trace.TOPIC, "spool full")
            raise Refused(
                503, "log_unavailable", f"{self.spool.depth} records wait for the log", retry_s=5
            )
        try:
            self.engine.check_room(lane)
        except EngineBusy as error:
            self.telemetry.count("tendril.serving.refused", reason="engine busy")
            self.spool.refuse(Trace.TOPIC, "engine busy")
            raise Refused(429, "engine_busy", str(error), retry_s=1) from error


def node_of(request: Request) -> ServingNode:
    """The node behind this app."""
    node: ServingNode = request.app.state.node
    return node
