"""Signed, expiring permission to report on one trace, for browsers and editors without a key."""

from typing import NamedTuple

from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer


class TokenInvalid(ValueError):
    """Not issued by this service, or for another trace."""


class TokenExpired(ValueError):
    """Issued by this service, too long ago."""


class TraceScope(NamedTuple):
    """What a token lets its holder report on."""

    trace_id: str
    session_id: str
    tenant: str
    user_key: str


class FeedbackTokens:
    """Issues and reads tokens; HMAC over the scope and the time of issue."""

    def __init__(self, secret: bytes, ttl_s: float) -> None:
        self._serializer = URLSafeTimedSerializer(secret, salt="tendril.feedback")
        self._ttl_s = ttl_s

    def issue(self, scope: TraceScope) -> str:
        return str(self._serializer.dumps(list(scope)))

    def read(self, token: str, trace_id: str) -> TraceScope:
        """Raises `TokenInvalid` or `TokenExpired`."""
        try:
            scope = TraceScope(*self._serializer.loads(token, max_age=int(self._ttl_s)))
        except SignatureExpired as error:
            raise TokenExpired(
                f"feedback_token: expected one under {self._ttl_s:g} s old, "
                f"got one signed at {error.date_signed}"
            ) from error
        except (BadSignature, TypeError) as error:
            raise TokenInvalid(
                "feedback_token: expected the one that came with the reply, got a token that "
                "this service did not issue"
            ) from error
        if scope.trace_id != trace_id:
            raise TokenInvalid(
                f"feedback_token: expected one for trace {trace_id}, got one for another trace"
            )
        return scope
