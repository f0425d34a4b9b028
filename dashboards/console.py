"""The console page: the loop in a browser, read-only, on this machine only."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.trustedhost import TrustedHostMiddleware

from dashboards.snapshot import LoopSnapshot

STATIC = Path(__file__).parent / "static"
HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def create_app(snapshot: Callable[[], LoopSnapshot]) -> FastAPI:
    """`GET /` the page, `GET /api/loop` its numbers as JSON, `GET /healthz`.

    Only requests addressed to a loopback name are answered: a web page elsewhere cannot read it
    by pointing its own name here.
    """
    app = FastAPI(title="Tendril console", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.middleware("http")
    async def add_headers(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/api/loop")
    def loop() -> Response:
        return Response(msgspec.json.encode(snapshot()), media_type="application/json")

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return app
