"""The public HTTP application of a serving node."""

from fastapi import FastAPI

from serving.api import completions, errors
from serving.feedback import routes as feedback
from serving.node import ServingNode
from tendril import __version__


def create_app(node: ServingNode) -> FastAPI:
    """OpenAI routes, feedback and health."""
    app = FastAPI(title="Tendril", version=__version__)
    app.state.node = node
    app.add_middleware(errors.BodyLimit, max_bytes=node.settings.max_body_bytes)
    errors.install(app)
    app.include_router(completions.router)
    app.include_router(feedback.router)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app
