"""vLLM engines that tests share, as one takes half a minute to start; each on a loop of its own."""

import asyncio
import importlib.util
import tempfile
import threading
import warnings
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from serving.engine import EngineRequest, EngineStats, SampledToken, SwapResult
from tendril.records import Lane
from tendril.settings import ServingSettings

T = TypeVar("T")
IS_INSTALLED = importlib.util.find_spec("vllm") is not None
SLOTS = 64
FAULTY = ("--worker-extension-cls", "tests.serving.vllm_engine.faulty_worker.FaultyWorker")
SMALL_STEPS = ("--max-num-batched-tokens", str(SLOTS + 8))
"""Prompts are computed a part at a time."""


class SharedVllm:
    """A running engine; `reset` brings it back to version 1 of its folder."""

    def __init__(self, folder: Path, **overrides: Any) -> None:
        from serving.vllm_engine.launch import launch

        self.folder = folder
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True).start()
        settings = ServingSettings(
            engine="vllm",
            max_context_tokens=128,
            max_running=SLOTS,
            max_waiting=2_000,
            seed=0,
            **overrides,
        )
        scratch = Path(tempfile.mkdtemp(prefix="tendril-test-"))
        with warnings.catch_warnings():  # its libraries', as they are imported
            warnings.simplefilter("ignore")
            self.engine = self.run(launch(folder, 1, settings, scratch))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def reset(self) -> None:
        """Version 1 again, with an empty prefix cache: as if it had just started."""
        self.engine.stage(1, self.folder)
        self.engine.swap(1)
        assert self.run(self.engine.llm.reset_prefix_cache())

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SampledToken, None]:
        """The engine's tokens, on the caller's loop."""
        here, tokens = asyncio.get_running_loop(), asyncio.Queue[Any]()

        async def pump() -> None:
            try:
                async for token in self.engine.generate(request):
                    here.call_soon_threadsafe(tokens.put_nowait, token)
                here.call_soon_threadsafe(tokens.put_nowait, None)
            except Exception as error:  # noqa: BLE001  raised again on the caller's loop
                here.call_soon_threadsafe(tokens.put_nowait, error)

        pumping = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while (token := await tokens.get()) is not None:
                if isinstance(token, Exception):
                    raise token
                yield token
        finally:
            pumping.cancel()


_SHARED: dict[Path, SharedVllm] = {}


def close_shared() -> None:
    """End the engines' processes, at the end of the session."""
    while _SHARED:
        _SHARED.popitem()[1].engine.close()


class Borrowed:
    """A shared engine for one test: `Engine`, where `close` only ends the loan."""

    def __init__(self, folder: Path, **overrides: Any) -> None:
        """Skips the test that asks for an engine unlike the shared ones."""
        if not IS_INSTALLED:
            pytest.skip("vLLM is not installed")
        unlike = {k: v for k, v in overrides.items() if k not in ("max_running", "max_waiting")}
        if unlike or overrides.get("max_running", SLOTS) < 4:
            pytest.skip(f"the shared vLLM engine cannot be made like {overrides}")
        if folder not in _SHARED:
            _SHARED[folder] = SharedVllm(folder)
        self._shared = _SHARED[folder]
        self._shared.reset()

    def generate(self, request: EngineRequest) -> AsyncGenerator[SampledToken, None]:
        return self._shared.generate(request)

    def check_room(self, lane: Lane) -> None:
        self._shared.engine.check_room(lane)

    def stage(self, policy_version: int, folder: Path) -> str:
        return self._shared.engine.stage(policy_version, folder)

    def swap(self, policy_version: int) -> SwapResult:
        return self._shared.engine.swap(policy_version)

    def stats(self) -> EngineStats:
        return self._shared.engine.stats()

    def check(self) -> None:
        self._shared.engine.check()

    def close(self) -> None: ...
