"""The weights that vLLM serves, and how they change under running requests.

Stage: a patch is made from two folders in this process, then read and translated by the workers,
beside the model. Swap: pause keeping requests and their cache, scatter, label, resume; then every
element is compared with the checkpoint while serving goes on. Whatever fails, the old weights are
put back and the engine is resumed.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vllm.distributed.weight_transfer.base import (
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from vllm.v1.engine.async_llm import AsyncLLM

from serving.engine import SwapRefused, SwapResult
from serving.vllm_engine.patch import Patch, write_patch
from tendril.ids import new_id
from tendril.model_folder import WEIGHTS_FILE
from tendril.weights import read_weights, weights_digest

log = logging.getLogger(__name__)
T = TypeVar("T")

START_TIMEOUT_S = 1_800.0
STAGE_TIMEOUT_S = 600.0
PAUSE_TIMEOUT_S = 30.0
APPLY_TIMEOUT_S = 60.0
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class _Staged:
    policy_version: int
    folder: Path
    patch: Patch


class LiveWeights:
    """One engine's weights. `stage` and `swap` block, in a thread; the rest is for the loop."""

    def __init__(self, llm: AsyncLLM, folder: Path, policy_version: int, scratch: Path) -> None:
        self._llm, self._folder, self._scratch = llm, folder, scratch
        self.policy_version = policy_version
        self.digest = weights_digest(read_weights(folder / WEIGHTS_FILE))
        self.is_open = asyncio.Event()
        """Clear while weights change: requests that come now wait."""
        self.is_open.set()
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()
        self._staged: _Staged | None = None

    async def start(self) -> None:
        """Map the weights and name their version. Raises where this model cannot be patched."""
        init = WeightTransferInitRequest(init_info={"folder": str(self._folder)})
        await asyncio.wait_for(self._llm.init_weight_transfer_engine(init), START_TIMEOUT_S)
        await self._llm.update_weight_version(str(self.policy_version))
        await self._job("tendril_verify", str(self._folder))

    def stage(self, policy_version: int, folder: Path) -> str:
        """See `Engine.stage`."""
        path = self._scratch / f"{new_id()}.patch"
        try:
            base = self._folder if (self._folder / WEIGHTS_FILE).exists() else None
            patch = write_patch(path, base, folder)
            self._on_loop(self._stage(patch))
        except (OSError, ValueError) as error:  # not there, torn, of another model, or too slow
            raise SwapRefused(str(error)) from error
        finally:
            path.unlink(missing_ok=True)
        self._staged = _Staged(policy_version, folder, patch)
        return patch.weights_digest

    async def _stage(self, patch: Patch) -> None:
        async with self._changing:
            await self._job("tendril_stage", str(patch.path))

    def swap(self, policy_version: int, while_paused: Callable[[], Awaitable[None]]) -> SwapResult:
        """See `Engine.swap`; `while_paused` runs between the last old and the first new step."""
        return self._on_loop(self._swap(policy_version, while_paused))

    async def _swap(
        self, policy_version: int, while_paused: Callable[[], Awaitable[None]]
    ) -> SwapResult:
        async with self._changing:
            staged, self._staged = self._staged, None
            if staged is None or staged.policy_version != policy_version:
                self._staged = staged
                got = staged.policy_version if staged else "none"
                raise SwapRefused(f"expected version {policy_version} staged, got {got}")
            previous, started = self.policy_version, time.perf_counter()
            async with self._paused():
                await self._apply(staged, previous)
                await while_paused()
            pause_ms = (time.perf_counter() - started) * 1000
            try:
                await self._job("tendril_verify", str(staged.folder))
            except ValueError as error:
                async with self._paused():
                    await self._take_back(previous)
                    await while_paused()
                raise SwapRefused(f"version {policy_version} arrived damaged: {error}") from error
            self._folder, self.digest = staged.folder, staged.patch.weights_digest
            return SwapResult(policy_version, pause_ms, self.digest)

    @contextlib.asynccontextmanager
    async def _paused(self) -> Any:
        """No step runs inside, and requests are kept; resumed however the block ends."""
        self.is_open.clear()
        try:
            pausing = self._llm.pause_generation(mode="keep", clear_cache=False)
            await asyncio.wait_for(pausing, PAUSE_TIMEOUT_S)
            yield
        except TimeoutError as error:
            raise SwapRefused(f"not done in time: {error}") from error
        finally:
            try:
                await self._llm.resume_generation()
            finally:
                self.is_open.set()

    async def _apply(self, staged: _Staged, previous: int) -> None:
        """Scatter and label, all or nothing."""
        update = WeightTransferUpdateRequest(update_info={"patch": str(staged.patch.path)})
        try:
            async with asyncio.timeout(APPLY_TIMEOUT_S):
                await self._llm.start_weight_update()
                await self._llm.update_weights(update)
                await self._llm.finish_weight_update(str(staged.policy_version))
        except Exception as error:
            await self._take_back(previous)
            raise SwapRefused(f"applying version {staged.policy_version}: {error}") from error
        self.policy_version = staged.policy_version

    async def _take_back(self, policy_version: int) -> None:
        """The weights before the last update, again. Where even that fails the engine is lost."""
        async with asyncio.timeout(APPLY_TIMEOUT_S):
            await self._llm.collective_rpc("tendril_take_back")
            await self._llm.update_weight_version(str(policy_version))
        self.policy_version = policy_version

    async def _job(self, call: str, argument: str) -> None:
        """Run one of the workers' jobs to its end. Raises `ValueError` with what went wrong."""
        try:
            async with asyncio.timeout(STAGE_TIMEOUT_S):
                await self._llm.collective_rpc(call, args=(argument,))
                while None in (results := await self._llm.collective_rpc("tendril_result")):
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise ValueError(f"{call}: no answer in {STAGE_TIMEOUT_S:.0f} s") from error
        if failures := [result for result in results if result]:
            raise ValueError(f"{call} of {argument}: {failures[0]}")

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
