"""The parts of one serving node, put together once and handed to the routes."""

import hashlib
import random
from dataclasses import dataclass

from fastapi import Request

from serving.api.errors import Refused
from serving.api.text import TextCodec
from serving.engine import Engine
from serving.feedback.tokens import FeedbackTokens
from serving.keys import is_known
from serving.recorder import Caller, Recorder
from serving.spool import Spool
from tendril.ids import digest_of, user_key
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
    keys: tuple[str, ...]
    silence_token_id: int | None
    random: random.Random
    telemetry: Telemetry

    def caller(self, request: Request, user: str | None) -> Caller:
        """Who is asking. Raises `Refused` 401 without a known key.

        Without a session header, one session per key and user: never shared across keys.
        """
        header = request.headers.get("authorization", "").encode("latin-1").decode(errors="replace")
        key = header.removeprefix("Bearer ").strip()
        if not is_known(key, self.keys):
            raise Refused(
                401, "invalid_api_key",
                "Authorization: expected 'Bearer <application key>', got "
                + ("an unknown key" if key else "none"),
            )  # fmt: skip
        tenant = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        hashed_user = user_key(f"{tenant}/{user or 'anonymous'}", self.secret)
        given = request.headers.get("x-tendril-session-id", "")[:128]
        consent = request.headers.get("x-tendril-train-consent", "true").lower() != "false"
        session = digest_of(tenant, given) if given else digest_of(tenant, hashed_user, "inferred")
        return Caller(tenant, hashed_user, session, bool(given), consent)


def node_of(request: Request) -> ServingNode:
    """The node behind this app."""
    node: ServingNode = request.app.state.node
    return node
