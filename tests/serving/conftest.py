"""Checkpoints and engines that the serving tests share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.engine import Engine
from tests.serving.engines import ENGINES, Start
from tests.serving.live_server import LiveServer, make_settings, serving
from tests.serving.small_model import Reference, write_model
from tests.serving.vllm_engine.shared import close_shared


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two versions of one model."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return [write_model(folder / f"v{seed}", seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="session")
def checkpoint(checkpoints: list[Path]) -> Path:
    return checkpoints[0]


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


@pytest.fixture(scope="session", autouse=True)
def _shared_engines() -> Iterator[None]:
    yield
    close_shared()


@pytest.fixture(params=["torch", pytest.param("vllm", marks=pytest.mark.vllm)])
def start(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[Start]:
    """Starts engines on the checkpoint (or `folder`), and stops them after the test."""
    started: list[Engine] = []

    def start_one(folder: Path = checkpoint, **overrides: Any) -> Engine:
        started.append(ENGINES[request.param](folder, **overrides))
        return started[-1]

    yield start_one
    for engine in started:
        engine.close()


@pytest.fixture(scope="session")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One process for all tests that leave it as it was."""
    with serving(make_settings(tmp_path_factory.mktemp("workspace"), checkpoint)) as live:
        yield live
