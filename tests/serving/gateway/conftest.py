"""A gateway before two replicas, for all tests that leave them as they were."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from serving.key_file import KeyEntry, create_key
from tests.serving.gateway.live_gateway import LiveGateway, gateway, make_settings
from tests.serving.gateway.stub_replica import StubReplica, running


class Pair(NamedTuple):
    """Two live replicas and their gateway."""

    live: LiveGateway
    stubs: tuple[StubReplica, StubReplica]
    keys: dict[str, str]

    def seen_last(self) -> StubReplica:
        """The only replica that has seen a request since the test began."""
        [stub] = [stub for stub in self.stubs if stub.seen]
        return stub

    def all(self, behaviour: str) -> None:
        for stub in self.stubs:
            stub.behaviour = behaviour


@pytest.fixture(scope="module")
def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    stubs = StubReplica("a"), StubReplica("b")
    workspace = tmp_path_factory.mktemp("gateway")
    with running(*stubs):
        settings = make_settings(workspace, *stubs, max_body_bytes=100_000, silence_timeout_s=0.8)
        key_file = settings.path(settings.access.key_file)
        keys = {
            entry.name: create_key(key_file, entry)
            for entry in (
                KeyEntry(name="slow", digest="", tenant="acme", requests_per_minute=3),
                KeyEntry(name="short", digest="", tenant="acme", tokens_per_minute=1_000),
                KeyEntry(name="nightly", digest="", tenant="acme", lanes=("online", "offline")),
                KeyEntry(name="leaver", digest="", tenant="acme"),
                KeyEntry(name="operator", digest="", tenant="acme", role="operator"),
            )
        }
        with gateway(settings) as live:
            yield Pair(live, stubs, keys)


@pytest.fixture
def pair(_started: Pair) -> Iterator[Pair]:
    yield _started
    for stub in _started.stubs:
        stub.behaviour = "echo"
        stub.seen.clear()
        stub.hung_up.clear()
        stub.release.clear()
