"""Who asks, read off a request in the same way by gateways and by replicas."""

from starlette.datastructures import Headers

from serving.api.errors import Refused
from serving.keys import ApplicationKey, KeyRing
from tendril.records import Lane

FEEDBACK_PATHS = frozenset({"/v1/feedback", "/v1/feedback/schema"})
"""No key needed: a report carries its own token."""
MAX_IDENTIFIER_CHARS = 128


def key_of(keys: KeyRing, authorization: str, api_key: str) -> ApplicationKey:
    """The caller's key, from either header: `x-api-key` is how Anthropic's clients send it.

    Raises `Refused` 401.
    """
    shown = authorization or api_key
    key = keys.authenticate(shown)
    if key is None:
        raise Refused(
            401, "invalid_api_key",
            "Authorization: expected 'Bearer <application key>', got "
            + ("an unknown key" if shown else "none"),
        )  # fmt: skip
    return key


def lane_of(key: ApplicationKey, given: str) -> Lane:
    """The lane in `x-tendril-lane`. Raises `Refused` 403 for one that the key does not allow."""
    for lane in key.lanes:
        if lane == given:
            return lane
    allowed = " or ".join(sorted(key.lanes))
    raise Refused(403, "lane_refused", f"x-tendril-lane: expected {allowed}, got {given!r:.40}")


def identifier(*candidates: object) -> str:
    """The first that can be one, cut to a bounded length; "" where none can."""
    for value in candidates:
        if isinstance(value, str) and value:
            return value.encode(errors="replace").decode()[:MAX_IDENTIFIER_CHARS]
    return ""


def header_text(headers: Headers, name: str) -> str:
    """A header's value as UTF-8, which Starlette reads as Latin-1; "" where there is none."""
    return headers.get(name, "").encode("latin-1").decode(errors="replace")


def said_yes(headers: Headers, name: str, *, default: bool) -> bool:
    """Whether a header that is `true` or `false` says yes; said twice, both must.

    Raises `Refused` 400 for any other word, and for the name with underscores, which servers mix
    up: who tried to say no must not be heard as yes.
    """
    if any(other.replace("_", "-") == name for other in headers if "_" in other):
        raise Refused(400, "invalid_header", f"expected the header {name}, got it with underscores")
    words = [word.strip().lower() for value in headers.getlist(name) for word in value.split(",")]
    if wrong := [word for word in words if word not in ("true", "false")]:
        raise Refused(
            400, "invalid_header", f"{name}: expected true or false, got {wrong[0]!r:.40}"
        )
    return all(word == "true" for word in words) if words else default
