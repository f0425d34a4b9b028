"""The offline lane: only in lent slots, behind everybody, refused when too many come."""

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from serving.key_file import KeyEntry, create_key
from tests.serving.live_server import KEY, LiveServer, assert_refused

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]
OFFLINE = {"x-tendril-lane": "offline"}


@pytest.fixture(scope="module")
def offline_key(vllm_server: LiveServer) -> str:
    settings = vllm_server.settings
    entry = KeyEntry(name="batch", digest="0" * 64, tenant="batch", lanes=("online", "offline"))
    return create_key(settings.path(settings.access.key_file), entry)


async def ask(client: httpx.AsyncClient, key: str, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} | fields.pop("headers", {})
    body = {"model": "tendril", "prompt": "def a", "max_tokens": 60, "ignore_eos": True} | fields
    return await client.post("/v1/completions", json=body, headers=headers)


def wait_known(server: LiveServer, key: str) -> None:
    """The ring reads its file again every half second."""

    async def run() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            for _ in range(100):
                if (await ask(client, key, max_tokens=1)).status_code == 200:
                    return
                await asyncio.sleep(0.05)
        raise TimeoutError

    asyncio.run(run())


def test_a_flood_of_offline_requests_is_refused_while_live_ones_are_served(
    vllm_server: LiveServer, offline_key: str
) -> None:
    wait_known(vllm_server, offline_key)
    lent, waiting = (
        vllm_server.settings.serving.lent_slots,
        vllm_server.settings.serving.max_waiting,
    )
    busiest: list[int] = []

    async def watch(client: httpx.AsyncClient) -> None:
        while True:
            health = (await client.get("/health")).json()
            busiest.append(health["num_running"])
            await asyncio.sleep(0.02)

    async def run() -> tuple[list[httpx.Response], list[httpx.Response]]:
        limits = httpx.Limits(max_connections=1_000)
        async with httpx.AsyncClient(
            base_url=vllm_server.url, timeout=120, limits=limits
        ) as client:
            watching = asyncio.create_task(watch(client))
            flood = [
                asyncio.create_task(ask(client, offline_key, headers=OFFLINE, max_tokens=20))
                for _ in range(lent + waiting + 50)
            ]
            while not busiest or busiest[-1] < lent:
                await asyncio.sleep(0.01)
            only_offline = max(busiest)
            live = await asyncio.gather(*(ask(client, KEY) for _ in range(8)))
            assert only_offline <= lent
            assert not all(task.done() for task in flood)  # the live ones did not wait for them
            watching.cancel()
            return list(live), list(await asyncio.gather(*flood))

    live, flood = asyncio.run(run())
    assert {reply.status_code for reply in live} == {200}
    counts = Counter(reply.status_code for reply in flood)
    assert counts.keys() == {200, 429}
    assert counts[429] >= 50 - 8  # some may have ended meanwhile
    assert all(r.headers["retry-after"] == "1" for r in flood if r.status_code == 429)
    trace = vllm_server.trace(flood[0].headers["x-tendril-trace-id"])
    assert (trace.lane, trace.tenant) == ("offline", "batch")
    vllm_server.wait_idle()


def test_choices_count_as_slots(vllm_server: LiveServer, offline_key: str) -> None:
    wait_known(vllm_server, offline_key)
    headers = OFFLINE | {"authorization": f"Bearer {offline_key}"}
    body = {"model": "tendril", "prompt": "a", "max_tokens": 4}
    lent = vllm_server.settings.serving.lent_slots
    reply = vllm_server.http.post("/v1/completions", json=body | {"n": lent}, headers=headers)
    assert reply.status_code == 200
    reply = vllm_server.http.post("/v1/completions", json=body | {"n": lent + 1}, headers=headers)
    assert_refused(reply, 400, f"expected at most {lent}")


def test_a_key_without_the_lane_is_refused(vllm_server: LiveServer) -> None:
    body = {"model": "tendril", "prompt": "a"}
    reply = vllm_server.http.post("/v1/completions", json=body, headers=OFFLINE)
    assert_refused(reply, 403, "x-tendril-lane")
