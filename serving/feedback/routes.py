"""`POST /v1/feedback`: what users did about a reply, one event or a batch, safe to repeat.

Who may report what: events about a trace need the token that came with its reply. A key alone
would not do, as this node cannot tell whose trace an id is. Events about a whole session come with
any of its tokens or with an application key; those about a user's data (consent, deletion) only
with a key, as tokens stand in URLs, which get around.
"""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from serving.api.errors import Refused, encodable
from serving.feedback.body import event_of, json_object, validated
from serving.feedback.envelope import Event
from serving.feedback.tokens import TokenExpired, TokenInvalid, TraceScope
from serving.feedback.wire import ControlEvent, FeedbackBatch, Graded, SessionEvent, json_schema
from serving.node import ServingNode, node_of
from serving.sessions import given_session_id, user_session_id
from serving.spool import SpoolFull
from tendril.consent import consent_of
from tendril.log import LogUnavailable
from tendril.records import Feedback

router = APIRouter(prefix="/v1")
Node = Annotated[ServingNode, Depends(node_of)]
WIRE_ONLY = {"feedback_token", "session_id", "user"}


@router.get("/feedback/schema")
async def feedback_schema() -> dict[str, Any]:
    """JSON schema of one event."""
    return json_schema()


@router.post("/feedback")
def report_feedback(
    node: Node,
    request: Request,
    body: Annotated[dict[str, Any], Depends(json_object)],
    token: str | None = None,
) -> JSONResponse:
    """Accept one event, or `{"events": [...]}`. Durable on answer; repeats answer `duplicate`.

    A single event that is refused answers with its error; in a batch each event has a result.
    """
    if "events" not in body:
        return JSONResponse(_accept(node, request, body, token))
    batch = validated(FeedbackBatch, body, of="a batch")
    results: list[dict[str, Any]] = []
    for event in batch.events:
        try:
            results.append(_accept(node, request, event, token))
        except Refused as refused:
            given = event.get("event_id")
            event_id = encodable(given[:128]) if isinstance(given, str) else None
            results.append({"event_id": event_id, "status": "refused", **refused.body()})
    return JSONResponse({"results": results})


def _accept(
    node: ServingNode, request: Request, raw: dict[str, Any], url_token: str | None
) -> dict[str, Any]:
    """Check one event and make it durable. Raises `Refused`, counted by its code."""
    try:
        event = event_of(raw)
        return _put(node, event, _scope(node, request, event, url_token))
    except Refused as refused:
        node.spool.refuse(Feedback.TOPIC, _reason(refused))
        raise
    except (SpoolFull, LogUnavailable) as error:  # counted by the spool, where it can count
        raise Refused(503, "log_unavailable", str(error), retry_s=5) from error


def _reason(refused: Refused) -> str:
    """Few, fixed words: they become names of counts."""
    return {401: "no key", 403: "not for this trace", 410: "token expired"}.get(
        refused.status, "malformed"
    )


def _scope(node: ServingNode, request: Request, event: Event, url_token: str | None) -> TraceScope:
    """Whose event it is. Raises `Refused` 401, 403 or 410."""
    token = event.feedback_token or url_token
    trace_id: str | None = getattr(event, "trace_id", None)
    by_key = isinstance(event, ControlEvent | SessionEvent) and trace_id is None
    if isinstance(event, ControlEvent) or (by_key and not token):
        return _scope_of_key(node, request, event)
    try:
        scope = node.tokens.read(token or "", trace_id)
    except TokenInvalid as error:
        raise Refused(403, "feedback_token_invalid", str(error), param="feedback_token") from error
    except TokenExpired as error:
        raise Refused(410, "feedback_token_expired", str(error), param="feedback_token") from error
    # Users hold tokens: theirs is no grader's word on their own replies, or on a grader's health.
    if isinstance(event, Graded) and node.authenticate(request.headers).tenant != scope.tenant:
        raise Refused(403, "wrong_tenant", "grader.scored: expected a key of the trace's tenant")
    return scope


def _scope_of_key(node: ServingNode, request: Request, event: Event) -> TraceScope:
    """The session, or the user, that the key's holder names."""
    tenant = node.authenticate(request.headers).tenant
    hashed_user = node.user_key(tenant, getattr(event, "user", None))
    given: str | None = getattr(event, "session_id", None)
    session_id = given_session_id(tenant, given) if given else user_session_id(tenant, hashed_user)
    return TraceScope("", session_id, tenant, hashed_user)


def _put(node: ServingNode, event: Event, scope: TraceScope) -> dict[str, Any]:
    record = Feedback(
        **event.model_dump(exclude=WIRE_ONLY),
        session_id=scope.session_id,
        tenant=scope.tenant,
        user_key=scope.user_key,
        ingested_at=time.time(),
    )
    # An id belongs to the trace that used it first, so nobody can block another one's events.
    owner = record.trace_id or f"{scope.session_id}/{scope.user_key}"
    consent = consent_of(record)
    is_new = node.spool.put(
        scope.session_id,
        record,
        event_id=f"{owner}/{event.event_id}",
        also=() if consent is None else ((consent.person, consent),),
    )
    if consent is not None and is_new:
        node.consents.consents.add(
            consent, record.ingested_at
        )  # here at once; elsewhere by the log
    node.telemetry.count("tendril.serving.feedback", type=event.type, new=is_new)
    return {"event_id": event.event_id, "status": "accepted" if is_new else "duplicate"}
