"""`POST /v1/feedback`: what users did about a reply, one event or a batch, safe to repeat."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from serving.api.errors import Refused, encodable, invalid
from serving.api.wire import FeedbackBatch, FeedbackEvent
from serving.feedback.tokens import TokenExpired, TokenInvalid
from serving.node import ServingNode, node_of
from serving.spool import SpoolFull
from tendril.log import LogUnavailable
from tendril.records import Feedback

router = APIRouter(prefix="/v1")
Node = Annotated[ServingNode, Depends(node_of)]


@router.post("/feedback")
def report_feedback(
    node: Node, body: Annotated[dict[str, Any], Body()], token: str | None = None
) -> JSONResponse:
    """Accept one event, or `{"events": [...]}`. Durable on answer; repeats answer `duplicate`.

    A single event that is refused answers with its error; in a batch each event has a result.
    """
    if "events" not in body:
        return JSONResponse(_accept(node, body, token))
    try:
        batch = FeedbackBatch.model_validate(body)
    except ValidationError as error:
        raise invalid(error.errors()) from error
    results: list[dict[str, Any]] = []
    for event in batch.events:
        try:
            results.append(_accept(node, event, token))
        except Refused as refused:
            event_id = encodable(str(event.get("event_id"))[:128])
            results.append({"event_id": event_id, "status": "refused", **refused.body()})
    return JSONResponse({"results": results})


def _accept(node: ServingNode, raw: dict[str, Any], url_token: str | None) -> dict[str, Any]:
    """Check one event and make it durable."""
    try:
        return _put(node, FeedbackEvent.model_validate(raw), url_token)
    except ValidationError as error:
        node.spool.refuse(Feedback.TOPIC, "malformed")
        raise invalid(error.errors()) from error
    except TokenInvalid as error:
        node.spool.refuse(Feedback.TOPIC, "not for this trace")
        raise Refused(403, "feedback_token_invalid", str(error), param="feedback_token") from error
    except TokenExpired as error:
        node.spool.refuse(Feedback.TOPIC, "token expired")
        raise Refused(410, "feedback_token_expired", str(error), param="feedback_token") from error
    except (SpoolFull, LogUnavailable) as error:
        raise Refused(503, "log_unavailable", str(error), retry_s=5) from error


def _put(node: ServingNode, event: FeedbackEvent, url_token: str | None) -> dict[str, Any]:
    scope = node.tokens.read(event.feedback_token or url_token or "", event.trace_id)
    fields = event.model_dump(exclude={"feedback_token"})
    record = Feedback(
        **fields,
        session_id=scope.session_id,
        tenant=scope.tenant,
        user_key=scope.user_key,
        ingested_at=time.time(),
    )
    # An id belongs to the trace that used it first, so nobody can block another one's events.
    is_new = node.spool.put(scope.session_id, record, event_id=f"{event.trace_id}/{event.event_id}")
    node.telemetry.count("tendril.serving.feedback", type=event.type, new=is_new)
    return {"event_id": event.event_id, "status": "accepted" if is_new else "duplicate"}
