"""One serving process on vLLM for all tests here, over HTTP."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.live_server import LiveServer, make_settings, serving
from tests.serving.vllm_engine.shared import IS_INSTALLED

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
    with warnings.catch_warnings():  # vLLM's libraries', as they are imported
        warnings.simplefilter("ignore")
        with serving(settings, patience_s=120) as server:
            yield server
