"""The public HTTP application of a serving node."""

from typing import Any

from fastapi import FastAPI, Request
from starlette.types import ASGIApp

from serving.api import chat, completions, errors
from serving.cors import add_cors
from serving.door import Door
from serving.feedback import routes as feedback
from serving.identity import APPLICATION_PATHS
from serving.node import ServingNode
from tendril import __version__

TORCH_PATHS = frozenset({"/v1/completions", "/v1/chat/completions"})


def create_app(node: ServingNode, engine_app: ASGIApp | None = None) -> FastAPI:
    """OpenAI routes, feedback and health; the former from `engine_app` where an engine has its own.

    The door stands before both, so that who may ask for what is decided in one place.
    """
    app = FastAPI(title="Tendril", version=__version__)
    app.state.node = node
    errors.install(app)
    app.add_middleware(Door, node=node)
    app.add_middleware(errors.BodyLimit, max_bytes=node.settings.max_body_bytes)
    add_cors(app, node.settings)
    app.include_router(feedback.router)
    if engine_app is None:
        app.include_router(completions.router)
        app.include_router(chat.router)
        for path in sorted(APPLICATION_PATHS - TORCH_PATHS):
            app.add_api_route(path, _only_vllm, methods=["POST"], include_in_schema=False)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Alive, with what a gateway routes by."""
        stats = node.engine.stats()
        return {
            "status": "ok",
            "policy_version": stats.policy_version,
            "num_running": stats.num_running,
            "num_waiting": stats.num_waiting,
            "draining": node.draining.is_set(),
        }

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        """503 while draining or without a log; a full queue is no reason: 429 tells clients more.

        Nothing is counted: a probe is no request.
        """
        node.check_ready()
        return {"status": "ready"}

    if engine_app is not None:
        app.mount("/", engine_app)
    return app


async def _only_vllm(request: Request) -> None:
    asked = f"{request.method} {request.url.path}"
    raise errors.Refused(404, "http_error", f'{asked}: only with serving.engine = "vllm"')
