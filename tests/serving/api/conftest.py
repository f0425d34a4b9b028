"""The application on a scripted engine, one for all tests of the API."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.scripted import Stage, staged


@pytest.fixture(scope="session")
def running_stage(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage"), checkpoint) as stage:
        yield stage


@pytest.fixture
def stage(running_stage: Stage) -> Stage:
    running_stage.wait_idle()
    running_stage.reset()
    return running_stage
