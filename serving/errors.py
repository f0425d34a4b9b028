"""Refusals in the shape that OpenAI clients understand: what, expected, got."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
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

    def response(self) -> JSONResponse:
        headers = {"Retry-After": str(self.retry_s)} if self.retry_s else {}
        return JSONResponse(self.body(), self.status, headers)

    def body(self) -> dict[str, object]:
        return {
            "error": {
                "message": self.message,
                "type": TYPES.get(self.status, "api_error"),
                "param": self.param,
                "code": self.code,
            }
        }


def install(app: FastAPI) -> None:
    """Turn refusals, validation errors and unknown routes into that shape."""

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"] if part != "body")
        got = (
            "" if first["type"] in ("missing", "json_invalid") else f", got {first['input']!r:.80}"
        )
        where = param or "body"
        return Refused(400, first["type"], f"{where}: {first['msg']}{got}", param=param).response()

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        return Refused(error.status_code, "http_error", str(error.detail)).response()


class BodyLimit:
    """ASGI middleware: bodies over the limit are refused with 413, declared or streamed."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._max_bytes:
            await self._too_large(declared.decode("latin-1"))(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise Refused(413, "body_too_large", self._message(f"over {self._max_bytes}"))
            return message

        await self._app(scope, counted, send)

    def _message(self, got: str) -> str:
        return f"body: expected at most {self._max_bytes} bytes, got {got}"

    def _too_large(self, got: str) -> JSONResponse:
        return Refused(413, "body_too_large", self._message(got)).response()
