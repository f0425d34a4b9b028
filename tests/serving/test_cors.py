"""Web pages: none may read this service, unless the settings name them; refusals included."""

from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from serving.api.errors import BodyLimit
from serving.cors import add_cors
from tendril.settings import ServingSettings

PAGE = "https://app.example"


def _client(*origins: str) -> TestClient:
    app = FastAPI()
    app.add_middleware(BodyLimit, max_bytes=10)
    add_cors(app, ServingSettings(cors_origins=origins))

    @app.post("/v1/feedback")
    async def report() -> JSONResponse:
        return JSONResponse({}, headers={"x-tendril-trace-id": "t1"})

    return TestClient(app)


def _preflight(client: TestClient, origin: str) -> Any:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    return client.options("/v1/feedback", headers=headers)


def test_a_named_page_may_call_and_read_the_headers() -> None:
    client = _client(PAGE)
    preflight = _preflight(client, PAGE)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    reply = client.post("/v1/feedback", headers={"origin": PAGE})
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "x-tendril-feedback-url" in reply.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in reply.headers


def test_a_page_can_read_why_it_was_refused() -> None:
    reply = _client(PAGE).post("/v1/feedback", headers={"origin": PAGE}, content=b" " * 11)
    assert reply.status_code == 413
    assert reply.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("origins", [(), (PAGE,)])
def test_other_pages_read_nothing(origins: tuple[str, ...]) -> None:
    client = _client(*origins)
    for reply in (
        _preflight(client, "https://evil.example"),
        client.post("/v1/feedback", headers={"origin": "https://evil.example"}),
    ):
        assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/", "ftp://a", "", "https://"]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ValidationError, match="cors_origins"):
        ServingSettings(cors_origins=(origin,))
