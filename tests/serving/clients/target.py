"""The server that the flows of the official clients run against.

Normally the torch engine on a tiny checkpoint. `TENDRIL_TEST_BASE_URL` (with `/v1`), `_API_KEY` and
`_MODEL` name another one, of any engine.
"""

import os
from typing import NamedTuple

import httpx

from tests.serving.live_server import KEY, LiveServer

MODEL = "tendril"
CHAT = "/chat/completions"


class Target(NamedTuple):
    """Where a client is to be pointed."""

    base_url: str
    api_key: str
    model: str

    @property
    def serves_chat(self) -> bool:
        """A route that is there refuses an empty body with something else than 404 or 405."""
        headers = {"authorization": f"Bearer {self.api_key}"}
        answer = httpx.post(self.base_url + CHAT, json={}, headers=headers, timeout=20)
        return answer.status_code not in (404, 405)


def named_target() -> Target | None:
    """The one that the environment names."""
    base_url = os.environ.get("TENDRIL_TEST_BASE_URL")
    if base_url is None:
        return None
    api_key = os.environ.get("TENDRIL_TEST_API_KEY", "none")
    return Target(base_url, api_key, os.environ.get("TENDRIL_TEST_MODEL", MODEL))


def target_of(server: LiveServer) -> Target:
    return Target(f"{server.url}/v1", KEY, MODEL)
