"""The official npm client against vLLM's own server behind our door: the torch engine's flows."""

from pathlib import Path

import pytest

from tests.serving.clients.target import target_of
from tests.serving.clients.test_typescript import (
    CHAT_FLOWS,
    CLIENTS,
    COMPLETION_FLOWS,
    assert_flows,
    compiled,
)
from tests.serving.live_server import LiveServer

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),  # vLLM runs in this process, and has some
]


@pytest.fixture(scope="module")
def package() -> Path:
    return compiled(CLIENTS / "typescript")


@pytest.mark.parametrize("wrapped", ["", "1"], ids=["plain", "wrapped"])
def test_the_npm_client_runs_its_normal_flows(
    package: Path, vllm_server: LiveServer, wrapped: str
) -> None:
    assert_flows(package, target_of(vllm_server), COMPLETION_FLOWS, wrapped)


@pytest.mark.parametrize("wrapped", ["", "1"], ids=["plain", "wrapped"])
def test_the_npm_client_chats(package: Path, vllm_server: LiveServer, wrapped: str) -> None:
    assert_flows(package, target_of(vllm_server), CHAT_FLOWS, wrapped)
