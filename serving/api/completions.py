"""`/v1/completions` and `/v1/models`, as OpenAI clients expect them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from serving.api.answer import answer
from serving.api.completion_reply import CompletionReply
from serving.api.errors import Refused
from serving.api.fill_in_middle import fill_in_middle
from serving.api.sampling import check_model, decide, fitting
from serving.api.wire import CompletionBody
from serving.node import ServingNode, node_of

router = APIRouter(prefix="/v1")
Node = Annotated[ServingNode, Depends(node_of)]
Prompt = str | list[int]
MAX_COMPLETIONS = 64


@router.get("/models")
async def list_models(node: Node) -> dict[str, Any]:
    """The one model that this node serves."""
    model = {"id": node.settings.model_name, "object": "model", "owned_by": "tendril", "created": 0}
    return {"object": "list", "data": [model]}


@router.post("/completions")
async def create_completion(body: CompletionBody, request: Request, node: Node) -> Response:
    """Sample completions; their traces are durable before the last byte of the reply."""
    check_model(node, body.model)
    prompts = _prompts(body)
    encoded = [_encode(body, prompt, node) for prompt in prompts]
    for prompt in encoded:
        fitting(node, prompt, body.max_tokens, "prompt")
    decisions = [
        decide(node, body, prompt, body.max_tokens, num_top_logprobs=body.logprobs or 0)
        for prompt in encoded
        for _ in range(body.n)
    ]
    echoes = [_shown(prompt, node) for prompt in prompts] if body.echo else None
    reply = CompletionReply(body, decisions, node.codec, echoes)
    return await answer(request, node, decisions, reply, stream=body.stream)


def _prompts(body: CompletionBody) -> list[Prompt]:
    """One prompt or several; several lists, or several texts, in a list."""
    prompt = body.prompt
    several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    prompts: Any = prompt if several else [prompt]
    if len(prompts) * body.n > MAX_COMPLETIONS:
        raise Refused(
            400, "too_many_choices",
            f"prompt: expected at most {MAX_COMPLETIONS} completions, got {len(prompts)} prompts "
            f"for {body.n} each",
            param="prompt",
        )  # fmt: skip
    found: list[Prompt] = prompts
    return found


def _encode(body: CompletionBody, prompt: Prompt, node: ServingNode) -> tuple[int, ...]:
    if not body.suffix:
        return node.codec.encode(prompt) if isinstance(prompt, str) else _known(prompt, node)
    before = node.codec.encode_plain(prompt) if isinstance(prompt, str) else _known(prompt, node)
    return fill_in_middle(node.codec, before, body.suffix)


def _known(prompt: list[int], node: ServingNode) -> tuple[int, ...]:
    vocabulary = node.codec.tokenizer.get_vocab_size()
    if any(token >= vocabulary for token in prompt):
        raise Refused(400, "invalid_token", f"prompt: expected token ids below {vocabulary}, "
                      f"got {max(prompt)}", param="prompt")  # fmt: skip
    return tuple(prompt)


def _shown(prompt: Prompt, node: ServingNode) -> str:
    return prompt if isinstance(prompt, str) else node.codec.tokenizer.decode(prompt)
