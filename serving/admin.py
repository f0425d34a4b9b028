"""The node agent's door to the engine: loopback only, never on the public port."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware

from serving.api import errors
from serving.api.errors import Refused
from serving.engine import SwapRefused
from serving.node import ServingNode


class StageBody(BaseModel):
    policy_version: int
    folder: Path


class SwapBody(BaseModel):
    policy_version: int


def refuse_browsers(origin: Annotated[str | None, Header()] = None) -> None:
    """A page that is open on this machine can post to loopback too. Raises `Refused` 403."""
    if origin is not None:
        raise Refused(403, "forbidden", "this port is not for browsers")


def create_admin_app(node: ServingNode) -> FastAPI:
    """Status, stage, swap and drain."""
    engine = node.engine
    app = FastAPI(title="Tendril engine admin", dependencies=[Depends(refuse_browsers)])
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    errors.install(app)

    @app.get("/admin/status")
    async def status() -> dict[str, Any]:
        return engine.stats()._asdict()

    @app.post("/admin/stage")
    async def stage(body: StageBody) -> dict[str, Any]:
        try:
            digest = await asyncio.to_thread(engine.stage, body.policy_version, body.folder)
        except SwapRefused as error:
            raise Refused(409, "stage_refused", str(error)) from error
        return {"weights_digest": digest}

    @app.post("/admin/swap")
    async def swap(body: SwapBody) -> dict[str, Any]:
        try:
            result = await asyncio.to_thread(engine.swap, body.policy_version)
        except SwapRefused as error:
            raise Refused(409, "swap_refused", str(error)) from error
        return result._asdict()

    @app.post("/admin/drain")
    async def drain(draining: bool = True) -> dict[str, bool]:
        """Take no new requests (`draining=false`: take them again); those that run go on."""
        (node.draining.set if draining else node.draining.clear)()
        return {"draining": draining}

    return app
