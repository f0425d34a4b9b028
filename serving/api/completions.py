"""`/v1/completions` and `/v1/models`, as OpenAI clients expect them."""

import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from serving.api.connection import ClientGone, EventStream, while_connected
from serving.api.errors import Refused
from serving.api.text import SampledText
from serving.api.wire import CompletionBody
from serving.engine import EngineBusy
from serving.feedback.tokens import TraceScope
from serving.node import ServingNode, node_of
from serving.recorder import Decision
from serving.spool import SpoolFull
from tendril.log import LogUnavailable
from tendril.records import FinishReason, Sampling, Trace

router = APIRouter(prefix="/v1")
Node = Annotated[ServingNode, Depends(node_of)]


@router.get("/models")
async def list_models(request: Request, node: Node) -> dict[str, Any]:
    """The one model that this node serves."""
    node.caller(request, None)
    model = {"id": node.settings.model_name, "object": "model", "owned_by": "tendril", "created": 0}
    return {"object": "list", "data": [model]}


@router.post("/completions")
async def create_completion(body: CompletionBody, request: Request, node: Node) -> Response:
    """Sample a completion; its trace is durable before the last byte of the reply."""
    decision = _decide(body, request, node)
    pieces = node.recorder.sample(decision)
    try:
        # The headers name the version, so even a stream waits for its first token.
        first = await while_connected(request, anext(pieces, ""))
        if body.stream:
            return EventStream(
                _stream(body, decision, node, first, pieces),
                pieces,
                headers=_headers(node, decision),
            )
        await while_connected(request, _exhaust(pieces))
    except ClientGone:
        return Response(status_code=499)  # nobody reads it
    except EngineBusy as error:
        node.telemetry.count("tendril.serving.refused", reason="engine busy")
        node.spool.refuse(Trace.TOPIC, "engine busy")
        raise Refused(429, "engine_busy", str(error), retry_s=1) from error
    return JSONResponse(_reply(body, decision, node), headers=_headers(node, decision))


async def _exhaust(pieces: AsyncIterator[str]) -> None:
    async for _ in pieces:
        pass


def _decide(body: CompletionBody, request: Request, node: ServingNode) -> Decision:
    """Check what only this node knows, and draw the exploration arm."""
    caller = node.caller(request, body.user)
    settings = node.settings
    if node.spool.is_full:
        node.spool.refuse(Trace.TOPIC, "spool full")
        raise SpoolFull(f"{node.spool.depth} records wait for the log")
    if body.model != settings.model_name:
        raise Refused(
            404, "model_not_found", f"model: expected {settings.model_name!r}, got {body.model!r}",
            param="model",
        )  # fmt: skip
    if isinstance(body.prompt, str):
        prompt = node.codec.encode(body.prompt)
    else:
        prompt = tuple(body.prompt)
        vocabulary = node.codec.tokenizer.get_vocab_size()
        if any(token >= vocabulary for token in prompt):
            raise Refused(400, "invalid_token", f"prompt: expected token ids below {vocabulary}, "
                          f"got {max(prompt)}", param="prompt")  # fmt: skip
    if not prompt or len(prompt) + body.max_tokens > settings.max_context_tokens:
        raise Refused(
            400, "context_length_exceeded",
            f"prompt: expected 1 to {settings.max_context_tokens} tokens together with max_tokens, "
            f"got {len(prompt)} + {body.max_tokens}",
            param="prompt",
        )  # fmt: skip
    can_be_silent = node.silence_token_id is not None
    share = settings.explore_share if can_be_silent else 0.0
    return Decision(
        caller=caller,
        route="suggestion" if can_be_silent else "completion",
        model=settings.model_name,
        prompt_token_ids=prompt,
        sampling=Sampling(
            temperature=body.temperature, max_tokens=body.max_tokens, top_p=body.top_p,
            seed=body.seed, stop=tuple(body.stop),
        ),
        exploration_share=share,
        forced=node.random.random() < share,
        text=SampledText(node.codec, tuple(body.stop)),
    )  # fmt: skip


def _headers(node: ServingNode, decision: Decision) -> dict[str, str]:
    """What a client needs to report on this reply, with or without a key."""
    caller = decision.caller
    token = node.tokens.issue(
        TraceScope(decision.trace_id, caller.session_id, caller.tenant, caller.user_key)
    )
    return {
        "x-tendril-trace-id": decision.trace_id,
        "x-tendril-policy-version": str(decision.policy_version),
        "x-tendril-feedback-url": f"/v1/feedback?token={token}",
    }


def _reply(body: CompletionBody, decision: Decision, node: ServingNode) -> dict[str, Any]:
    choice = {
        "index": 0,
        "text": decision.text.text,
        "finish_reason": decision.finish_reason,
        "logprobs": _logprobs(decision, node) if body.logprobs is not None else None,
    }
    num_prompt, num_completion = len(decision.prompt_token_ids), len(decision.tokens)
    usage = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }
    return {**_envelope(decision), "choices": [choice], "usage": usage}


def _envelope(decision: Decision) -> dict[str, Any]:
    return {
        "id": f"cmpl-{decision.trace_id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": decision.model,
    }


def _logprobs(decision: Decision, node: ServingNode, start: int = 0) -> dict[str, Any]:
    """Of the tokens sampled from the `start`th on, in OpenAI's completions format."""
    tokens = decision.tokens[start:]
    return {
        "tokens": [node.codec.token_text(token.token_id) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": None,
        "text_offset": decision.text.offsets()[start:],
    }


async def _stream(
    body: CompletionBody,
    decision: Decision,
    node: ServingNode,
    first: str,
    pieces: AsyncIterator[str],
) -> AsyncIterator[str]:
    """Server-sent events; the last one carries the finish reason, or what went wrong."""
    envelope = _envelope(decision)
    num_reported = 0

    def event(text: str, finish_reason: FinishReason | None) -> str:
        nonlocal num_reported
        logprobs = _logprobs(decision, node, num_reported) if body.logprobs is not None else None
        num_reported = len(decision.tokens)
        choice = {
            "index": 0, "text": text, "finish_reason": finish_reason, "logprobs": logprobs,
        }  # fmt: skip
        return f"data: {json.dumps({**envelope, 'choices': [choice]})}\n\n"

    if first:
        yield event(first, None)
    try:
        async for piece in pieces:
            yield event(piece, None)
    except (SpoolFull, LogUnavailable) as error:  # sampled but not recorded: no finish reason
        yield f"data: {json.dumps(Refused(503, 'log_unavailable', str(error)).body())}\n\n"
        return
    yield event("", decision.finish_reason)
    yield "data: [DONE]\n\n"
