"""Signed, expiring permission to report on one reply, for browsers and editors without a key."""

import re
import time
from typing import NamedTuple

from itsdangerous import BadSignature, URLSafeTimedSerializer

MAX_AHEAD_S = 300.0
"""By how much another replica's clock may be ahead of this one."""
CHOICE = re.compile(r"(\.[1-9][0-9]{0,5})?")


class TokenInvalid(ValueError):
    """Not issued by this service, or for another trace."""


class TokenExpired(ValueError):
    """Issued by this service, too long ago."""


class TraceScope(NamedTuple):
    """What a token lets its holder report on: the traces of one request."""

    trace_id: str
    """Of the request's first choice; the others are `<trace_id>.<n>`."""
    session_id: str
    tenant: str
    user_key: str

    def covers(self, trace_id: str) -> bool:
        """Whether the trace is one of the request's choices."""
        return trace_id.startswith(self.trace_id) and bool(
            CHOICE.fullmatch(trace_id, len(self.trace_id))
        )


class FeedbackTokens:
    """Issues and reads tokens; HMAC over the scope and the time of issue."""

    def __init__(self, secret: bytes, ttl_s: float) -> None:
        self._serializer = URLSafeTimedSerializer(secret, salt="tendril.feedback")
        self._ttl_s = ttl_s

    def issue(self, scope: TraceScope) -> str:
        return str(self._serializer.dumps(list(scope)))

    def read(self, token: str, trace_id: str | None) -> TraceScope:
        """The token's scope, which must cover `trace_id` if one is given.

        Raises `TokenInvalid` or `TokenExpired`.
        """
        try:
            fields, signed_at = self._serializer.loads(token, return_timestamp=True)
            scope = TraceScope(*fields)
        except (BadSignature, TypeError) as error:
            raise TokenInvalid(
                "feedback_token: expected the one that came with the reply, got a token that "
                "this service did not issue"
            ) from error
        age_s = (
            time.time() - signed_at.timestamp()
        )  # below 0 where another replica's clock is ahead
        if not -MAX_AHEAD_S <= age_s <= self._ttl_s:
            raise TokenExpired(
                f"feedback_token: expected one under {self._ttl_s:g} s old, "
                f"got one signed at {signed_at}"
            )
        if trace_id is not None and not scope.covers(trace_id):
            raise TokenInvalid(
                f"feedback_token: expected one for trace {trace_id}, got one for another trace"
            )
        return scope
