"""Which web pages may read replies of this service: none, unless the settings name them."""

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

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
    """Answer the origins in `serving.cors_origins`. Call last: refusals need the headers too.

    Without credentials, as callers prove themselves by key or token and never by cookie.
    """
    if not settings.cors_origins:
        return
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=EXPOSED_HEADERS,
        max_age=PREFLIGHT_AGE_S,
    )
