"""The admin port: for the agent on this machine, and for no page that a browser there has open."""

import pytest

from tests.serving.live_server import LiveServer


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 200), ({"origin": "https://evil.example"}, 403), ({"host": "evil.example"}, 400)],
)
def test_only_a_process_of_this_machine_may_drain(
    server: LiveServer, headers: dict[str, str], status: int
) -> None:
    reply = server.admin.post("/admin/drain", params={"draining": False}, headers=headers)
    assert reply.status_code == status
