"""Which web pages may read replies of this service: none, unless the settings name them."""

from typing import Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from tendril.settings import ServingSettings

EXPOSED_HEADERS = (
    "x-tendril-trace-id",
    "x-tendril-policy-version",
    "x-tendril-feedback-url",
    "x-request-id",
    "retry-after",
)
PREFLIGHT_AGE_S = 3600


def add_cors(app: Starlette, settings: ServingSettings) -> None:
    """Answer the origins in `serving.cors_origins`. Call last: refusals need the headers too."""
    if settings.cors_origins:
        app.add_middleware(CORSMiddleware, **_options(settings))


def with_cors(app: ASGIApp, settings: ServingSettings) -> ASGIApp:
    """The same around an application that is no Starlette."""
    return CORSMiddleware(app, **_options(settings)) if settings.cors_origins else app


def _options(settings: ServingSettings) -> dict[str, Any]:
    """Without credentials, as callers prove themselves by key or token and never by cookie."""
    return {
        "allow_origins": settings.cors_origins,
        "allow_methods": ("GET", "POST"),
        "allow_headers": ("*",),
        "expose_headers": EXPOSED_HEADERS,
        "max_age": PREFLIGHT_AGE_S,
    }
