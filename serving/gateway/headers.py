"""Which headers cross the gateway: none that belongs to one connection, none that claims trust."""

from collections.abc import Iterable, Mapping

from multidict import CIMultiDict

from serving.api.errors import Refused

RawHeaders = Iterable[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
"""RFC 9110, section 7.6.1."""
TRUSTED = frozenset({b"x-tendril-gateway", b"x-tendril-arm", b"x-tendril-propensity"})
"""Only the gateway says these to a replica."""
KEPT_BACK = (
    HOP_BY_HOP
    | TRUSTED
    | frozenset(
        {
            b"host", b"content-length", b"expect", b"forwarded", b"x-forwarded-for",
            b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto", b"x-real-ip",
        }
    )
)  # fmt: skip
"""Written anew for the replica, or a claim about the client that nobody has checked."""


def to_replica(headers: RawHeaders, own: Mapping[str, str]) -> CIMultiDict[str]:
    """The request's headers as the replica gets them, `own` added; raises `Refused` 400.

    Names written with underscores count as those with dashes: some servers mix them up. What a
    user says to Tendril is never for this connection alone.
    """
    listed = _named_by_connection(headers)
    sent: CIMultiDict[str] = CIMultiDict()
    try:
        for name, value in headers:
            plain = name.replace(b"_", b"-")
            is_ours = plain.startswith(b"x-tendril-")
            if plain not in KEPT_BACK and (is_ours or plain not in listed):
                sent.add(name.decode(), value.decode())
    except UnicodeDecodeError as error:
        raise Refused(400, "invalid_header", "headers: expected UTF-8, got other bytes") from error
    sent.update(own)
    return sent


def _named_by_connection(headers: RawHeaders) -> frozenset[bytes]:
    listed = [value for name, value in headers if name == b"connection"]
    if not listed:
        return frozenset()
    return frozenset(part.strip().lower() for part in b",".join(listed).split(b","))


def to_client(headers: RawHeaders, *, last: bool) -> list[tuple[bytes, bytes]]:
    """The reply's headers as the client gets them; `last`: the connection ends with this reply."""
    sent = [(lower, value) for name, value in headers if (lower := name.lower()) not in HOP_BY_HOP]
    if last:
        sent.append((b"connection", b"close"))
    return sent
