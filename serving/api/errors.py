"""Refusals in the shape that OpenAI clients understand: what, expected, got."""

from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.engine import EngineBusy
from serving.spool import SpoolFull
from tendril.log import LogUnavailable
from tendril.words import plain

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    410: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class Refused(Exception):
    """A request that is answered with an error, and changes nothing."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_s: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.param, self.retry_s = param, retry_s

    @property
    def headers(self) -> dict[str, str]:
        headers = {"retry-after": str(self.retry_s)} if self.retry_s else {}
        return headers | {"www-authenticate": "Bearer"} if self.status == 401 else headers

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)

    def body(self) -> dict[str, object]:
        return {
            "error": {
                "message": encodable(self.message),
                "type": TYPES.get(self.status, "api_error"),
                "param": encodable(self.param) if self.param else None,
                "code": self.code,
            }
        }


def encodable(text: str) -> str:
    """`text` with lone surrogates, which JSON may carry and UTF-8 may not, written as escapes."""
    return text.encode(errors="backslashreplace").decode()


def invalid(errors: Sequence[ErrorDetails]) -> Refused:
    """The refusal for what validation found: of several, the one that lies deepest."""
    error = max(errors, key=lambda error: len(error["loc"]))
    parts = [str(part) for part in error["loc"] if part != "body"]
    where = ".".join(part for part in parts if not part.startswith("list["))[:200]
    if error["type"] == "json_invalid":
        message = f"body: expected JSON, got: {error['ctx']['error']} at position {where}"
        return Refused(400, error["type"], message)
    got = "" if error["type"] == "missing" else f", got {error['input']!r:.80}"
    return Refused(
        400, error["type"], f"{where or 'body'}: {plain(error['msg'])}{got}", param=where or None
    )


def not_found(asked: str, path: str) -> Refused:
    """The refusal of a path that is not there; a client's base URL often lacks its end."""
    hint = (
        "" if path.startswith("/v1/") else "; paths begin with /v1 (base URL: http://HOST:PORT/v1)"
    )
    return Refused(404, "http_error", f"{asked}: Not Found{hint}")


def too_large(max_bytes: int, declared: str = "") -> Refused:
    """The refusal of a body that is, or is declared to be, over the limit."""
    got = declared or f"over {max_bytes}"
    return Refused(413, "body_too_large", f"body: expected at most {max_bytes} bytes, got {got}")


def refusal(error: BaseException) -> Refused:
    """What the client is told of an error from below the API."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, EngineBusy):
        return Refused(429, "engine_busy", str(error), retry_s=1)
    if isinstance(error, SpoolFull | LogUnavailable):
        return Refused(503, "log_unavailable", str(error), retry_s=5)
    return Refused(
        500, "internal_error", "the request failed inside the server; its log has the reason"
    )


def install(app: FastAPI) -> None:
    """Turn refusals, validation errors and unknown routes into that shape."""

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        errors = error.errors()
        if any(isinstance(found["input"], bytes) for found in errors):  # not even read as JSON
            given = request.headers.get("content-type", "none")
            message = f"expected content-type application/json, got {given:.80}"
            return Refused(400, "content_type", message, param="content-type").response()
        return invalid(errors).response()

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        path = request.url.path
        asked = f"{request.method} {path}"
        refusal = Refused(error.status_code, "http_error", f"{asked}: {error.detail}")
        if error.status_code == 404:
            refusal = not_found(asked, path)
        response = refusal.response()
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(SpoolFull)
    @app.exception_handler(LogUnavailable)
    async def log_away(_: Request, error: Exception) -> JSONResponse:
        return refusal(error).response()

    @app.exception_handler(500)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return refusal(error).response()


class BodyLimit:
    """ASGI middleware: bodies over the limit are refused with 413, declared or streamed.

    A body is read whole before the application runs: it would answer an error of `receive` itself.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0").decode("latin-1")
        if not declared.isdecimal() or int(declared) > self._max_bytes:
            refused = too_large(self._max_bytes, declared[:40])
            await refused.response()(scope, receive, send)
            return
        messages: list[Message] = []
        num_bytes, more = 0, True
        while more:
            messages.append(await receive())
            num_bytes += len(messages[-1].get("body", b""))
            more = messages[-1].get("more_body", False)
            if num_bytes > self._max_bytes:
                await too_large(self._max_bytes).response()(scope, receive, send)
                return

        async def replayed() -> Message:
            return messages.pop(0) if messages else await receive()

        await self._app(scope, replayed, send)
