"""One serving process on vLLM for all tests here, over HTTP."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.live_server import LiveServer, make_settings, serving
from tests.serving.vllm_engine.shared import FAULTY, IS_INSTALLED, SMALL_STEPS, SharedVllm

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@pytest.fixture(scope="session")
def vllm_server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    if not IS_INSTALLED:
        pytest.skip("vLLM is not installed")
    settings = make_settings(
        tmp_path_factory.mktemp("vllm"),
        checkpoint,
        engine="vllm",
        vllm_args=TOOLS,
        max_context_tokens=512,
    )
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as environment:
        warnings.simplefilter("ignore")  # vLLM's libraries', as they are imported
        environment.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")
        with serving(settings, patience_s=120) as server:
            yield server


@pytest.fixture(scope="session")
def faulty_engine(checkpoints: list[Path]) -> Iterator[SharedVllm]:
    """Can be told to fail, and computes prompts a part at a time."""
    if not IS_INSTALLED:
        pytest.skip("vLLM is not installed")
    shared = SharedVllm(checkpoints[0], vllm_args=(*FAULTY, *SMALL_STEPS))
    yield shared
    shared.engine.close()
