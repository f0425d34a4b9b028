"""The node agent's side of the engine's admin port."""

from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

STATUS_TIMEOUT_S = 5.0
SWAP_TIMEOUT_S = 60.0
A = TypeVar("A", bound=msgspec.Struct)


class EngineDown(RuntimeError):
    """Nothing answers on the admin port."""


class EngineRefused(RuntimeError):
    """The engine answered with an error, or too late, or with something else than expected."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine serves and how busy it is."""

    policy_version: int
    weights_digest: str
    num_running: int = 0
    num_waiting: int = 0


class StageReply(msgspec.Struct, frozen=True, kw_only=True):
    weights_digest: str


class SwapReply(msgspec.Struct, frozen=True, kw_only=True):
    policy_version: int
    weights_digest: str
    pause_ms: float


class EngineClient:
    """Blocking calls to one engine; each raises `EngineDown` or `EngineRefused`."""

    def __init__(self, admin_url: str, timeout_s: float = SWAP_TIMEOUT_S) -> None:
        self._http = httpx.Client(base_url=admin_url, timeout=timeout_s, trust_env=False)

    def status(self) -> EngineStatus:
        request = self._http.build_request("GET", "/admin/status", timeout=STATUS_TIMEOUT_S)
        return self._ask(request, EngineStatus)

    def stage(self, version: int, folder: Path) -> StageReply:
        """Load `folder` beside the live weights."""
        body = {"policy_version": version, "folder": str(folder)}
        return self._ask(self._http.build_request("POST", "/admin/stage", json=body), StageReply)

    def swap(self, version: int) -> SwapReply:
        """Serve the staged version."""
        body = {"policy_version": version}
        return self._ask(self._http.build_request("POST", "/admin/swap", json=body), SwapReply)

    def close(self) -> None:
        self._http.close()

    def _ask(self, request: httpx.Request, reply_type: type[A]) -> A:
        what = f"{request.method} {request.url.path}"
        try:
            reply = self._http.send(request)
        except httpx.ConnectError as error:
            raise EngineDown(f"{what}: no engine at {request.url.netloc.decode()}") from error
        except httpx.HTTPError as error:
            raise EngineRefused(f"{what}: {type(error).__name__} {error}") from error
        if reply.status_code != httpx.codes.OK:
            raise EngineRefused(f"{what}: expected 200, got {reply.status_code} {reply.text[:200]}")
        try:
            return msgspec.json.decode(reply.content, type=reply_type)
        except msgspec.DecodeError as error:
            raise EngineRefused(f"{what}: {error}") from error
