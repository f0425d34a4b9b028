"""From a checked body to decisions: what only this node knows is checked here."""

from typing import Any

from serving.api.errors import Refused
from serving.api.wire import GenerationBody
from serving.context import served_request
from serving.node import ServingNode
from serving.recorder import Decision
from serving.text import SampledText
from tendril.records import Sampling


def check_model(node: ServingNode, model: str) -> None:
    """Raises `Refused` 404 for another model."""
    expected = node.settings.model_name
    if model != expected:
        raise Refused(
            404, "model_not_found", f"model: expected {expected!r}, got {model!r}", param="model"
        )


def fitting(node: ServingNode, prompt: tuple[int, ...], max_tokens: int | None, param: str) -> int:
    """`max_tokens`, or as many as fit. Raises `Refused` for more than the context holds."""
    capacity = node.settings.max_context_tokens
    asked = max(capacity - len(prompt), 1) if max_tokens is None else max_tokens
    if not prompt or len(prompt) + asked > capacity:
        raise Refused(
            400, "context_length_exceeded",
            f"{param}: expected 1 to {capacity} tokens together with max_tokens, "
            f"got {len(prompt)} + {asked}",
            param=param,
        )  # fmt: skip
    return asked


def decide(
    node: ServingNode,
    body: GenerationBody,
    prompt: tuple[int, ...],
    max_tokens: int,
    *,
    stop: tuple[str, ...] = (),
    **more: Any,
) -> Decision:
    """The request's next choice, with its exploration arm drawn."""
    request = served_request.get()
    share = node.settings.explore_share if request.route == "suggestion" else 0.0
    stops = (*body.stop, *stop)
    return Decision(
        request=request,
        choice=next(request.choices),
        model=node.settings.model_name,
        prompt_token_ids=prompt,
        sampling=Sampling(
            temperature=body.temperature, max_tokens=max_tokens, top_p=body.top_p,
            top_k=max(body.top_k, 0), min_p=body.min_p, seed=body.seed, stop=stops,
        ),
        exploration_share=share,
        forced=node.random.random() < share,
        text=SampledText(node.codec, stops),
        **more,
    )  # fmt: skip
