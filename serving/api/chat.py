"""`/v1/chat/completions`, as OpenAI clients expect it."""

import json
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from serving.api.answer import answer
from serving.api.chat_reply import ChatReply
from serving.api.chat_wire import ChatBody, template_messages, template_tools
from serving.api.errors import Refused
from serving.api.sampling import check_model, decide, fitting
from serving.api.tool_calls import CLOSE, OPEN, read_tool_calls
from serving.chat_template import InvalidConversation
from serving.node import ServingNode, node_of
from serving.recorder import Decision

router = APIRouter(prefix="/v1")
Node = Annotated[ServingNode, Depends(node_of)]


@router.post("/chat/completions")
async def create_chat_completion(body: ChatBody, request: Request, node: Node) -> Response:
    """Sample the next message; its traces are durable before the last byte of the reply."""
    check_model(node, body.model)
    prefill = _prefill(body)
    decisions = _decide(body, node, prefill)
    reply = ChatReply(body, decisions, node.codec, prefill)
    return await answer(request, node, decisions, reply, stream=body.stream)


def _prefill(body: ChatBody) -> str:
    """The beginning of the reply that a required call leaves no choice about."""
    if body.tool_choice == "required":
        return f'{OPEN}\n{{"name": "'
    if body.forced_tool is None:
        return ""
    return f'{OPEN}\n{{"name": {json.dumps(body.forced_tool)}, "arguments": '


def _decide(body: ChatBody, node: ServingNode, prefill: str) -> list[Decision]:
    codec = node.codec
    try:
        prompt = codec.encode_chat(template_messages(body), template_tools(body), prefill)
    except InvalidConversation as error:
        raise Refused(
            400, "chat_template_error", f"messages: the model's chat template says: {error}",
            param="messages",
        ) from error  # fmt: skip
    asked = body.max_completion_tokens or body.max_tokens
    max_tokens = fitting(node, prompt, asked, "messages")
    names = frozenset(tool.function.name for tool in body.offered_tools)
    one_call = bool(names) and (body.forced_tool is not None or not body.parallel_tool_calls)
    return [
        decide(
            node, body, prompt, max_tokens,
            stop=(*codec.chat_template.stop, *((CLOSE,) if one_call else ())),
            stop_token_ids=codec.chat_end_ids(),
            num_top_logprobs=body.top_logprobs,
            chat_template_digest=codec.chat_template.digest,
            read_tool_calls=partial(read_tool_calls, names=names, prefill=prefill)
            if names else None,
        )
        for _ in range(body.n)
    ]  # fmt: skip
