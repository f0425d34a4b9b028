"""From headers and body of a request to who asks, in which session, and in which experiment."""

import math
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.datastructures import Headers

from serving.access import MAX_IDENTIFIER_CHARS, header_text, identifier, lane_of, said_yes
from serving.api.errors import Refused
from serving.context import Caller, ServedRequest
from serving.history import history_of
from serving.keys import ApplicationKey, is_internal
from serving.node import ServingNode
from tendril.ids import digest_of
from tendril.records import Route

CHAT_PATHS = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/messages"})
HARNESS = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
APPLICATION_PATHS = CHAT_PATHS | {"/v1/completions"}


def identify(
    node: ServingNode, key: ApplicationKey, headers: Headers, path: str, body: bytes
) -> ServedRequest:
    """The request as the recorder needs it. Raises `Refused` 403 for a lane the key lacks, 400
    for what cannot be recorded.

    A body that the door cannot read is refused, whatever the route behind would make of it: whose
    it is decides what may be kept.
    """
    fields = _fields(body)
    if fields.get("use_beam_search") not in (None, False):
        raise Refused(
            400, "unsupported", "use_beam_search: expected false, as beams are not sampled",
            param="use_beam_search",
        )  # fmt: skip
    caller = _caller(node, key, headers, fields)
    history = history_of(path, fields)
    given = identifier(
        header_text(headers, "x-tendril-session-id"), _metadata(fields).get("session_id")
    )
    arm, propensity = _arm(headers, node.secret)
    return ServedRequest(
        caller=caller,
        session=node.sessions.resolve(caller, given=given, history=history, now=time.monotonic()),
        route=_route(path, node),
        lane=lane_of(key, headers.get("x-tendril-lane", "online")),
        arm=arm,
        propensity=propensity,
        harness_digest=_harness(header_text(headers, "x-tendril-harness")),
        history=history,
    )


def _caller(
    node: ServingNode, key: ApplicationKey, headers: Headers, fields: Mapping[str, Any]
) -> Caller:
    user = _user(headers, fields)
    hashed_user, consents = node.user_key(key.tenant, user), node.consents.consents
    trains = said_yes(headers, "x-tendril-train-consent", default=True)
    keeps = said_yes(headers, "x-tendril-content-consent", default=False)
    known = node.consents.is_ready  # who may have said no has not agreed
    return Caller(
        tenant=key.tenant,
        user_key=hashed_user,
        train_consent=known and consents.trains_now(key.tenant, hashed_user, asked=trains),
        content_consent=known and consents.allows_content(key.tenant, hashed_user, asked=keeps),
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise Refused(
            400, "invalid_json", f"body: expected one JSON object in UTF-8, got {error}"
        ) from error
    return fields


def _user(headers: Headers, fields: Mapping[str, Any]) -> str:
    """By header or body. A name that is cut would be another user's, with their consent."""
    named: dict[str, Any] = {"x-tendril-user": header_text(headers, "x-tendril-user")}
    named |= {name: fields.get(name) for name in ("user", "safety_identifier")}
    for name, value in named.items():
        if not isinstance(value, str | None) or len(value or "") > MAX_IDENTIFIER_CHARS:
            message = f"{name}: expected text of at most {MAX_IDENTIFIER_CHARS} characters"
            raise Refused(400, "invalid_user", message, param=name)
    return identifier(*named.values())


def _harness(given: str) -> str | None:
    """A name or digest as it stands; of anything else, which may be prose, only the digest."""
    if not given:
        return None
    return given if HARNESS.fullmatch(given) else digest_of("harness", given)


def _metadata(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = fields.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _route(path: str, node: ServingNode) -> Route:
    if path in CHAT_PATHS:
        return "chat"
    return "suggestion" if node.silence_token_id is not None else "completion"


def _arm(headers: Headers, secret: bytes) -> tuple[str, float]:
    """The experiment's arm, which only a gateway of ours may name."""
    if not is_internal(headers.get("x-tendril-gateway", ""), secret):
        return "live", 1.0
    try:
        propensity = float(headers.get("x-tendril-propensity", "1"))
    except ValueError:
        propensity = math.nan
    if not 0 < propensity <= 1:
        return "live", 1.0
    return headers.get("x-tendril-arm", "live")[:MAX_IDENTIFIER_CHARS], propensity
