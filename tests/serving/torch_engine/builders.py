"""Requests as the torch engine holds them."""

import asyncio

from serving.torch_engine.running import Running
from tendril.records import Lane
from tests.serving.small_model import make_request


def make_running(token_ids: list[int], lane: Lane = "online") -> Running:
    """A request whose client has gone: nothing is delivered."""
    loop = asyncio.new_event_loop()
    loop.close()
    request = make_request(*token_ids, lane=lane)
    return Running(request, loop, asyncio.Queue(), None, list(token_ids))
