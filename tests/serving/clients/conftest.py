"""A fake server for each test, and one real one for the flows of the official clients."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.clients.fake_server import FakeTendril, fake_tendril
from tests.serving.clients.target import Target, named_target, target_of
from tests.serving.live_server import make_settings, serving
from tests.serving.small_model import write_model

CONTEXT_TOKENS = 1024
"""Byte by byte a list of tools fills hundreds."""


@pytest.fixture
def fake() -> Iterator[FakeTendril]:
    with fake_tendril() as fake:
        yield fake


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Whatever the flows run against; a Tendril is started only if no other one is named."""
    named = named_target()
    if named is not None:
        yield named
        return
    folder = tmp_path_factory.mktemp("flows")
    checkpoint = _roomy_model(folder / "checkpoint")
    settings = make_settings(folder, checkpoint, max_context_tokens=CONTEXT_TOKENS)
    with serving(settings) as server:
        yield target_of(server)


def _roomy_model(folder: Path) -> Path:
    """The small model for longer contexts: its weights know nothing of positions."""
    write_model(folder, seed=1)
    config = json.loads((folder / "config.json").read_text())
    longer = config | {"max_position_embeddings": CONTEXT_TOKENS}
    (folder / "config.json").write_text(json.dumps(longer))
    return folder


@pytest.fixture(scope="session")
def chat_target(target: Target) -> Target:
    if not target.serves_chat:
        pytest.skip("this server has no /v1/chat/completions")
    return target
