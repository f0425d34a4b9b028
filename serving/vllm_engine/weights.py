"""The weights that vLLM serves, and how they change under running requests.

Stage: a patch is made from two folders in this process, then read and translated by the workers,
beside the model. Swap: pause keeping requests and their cache, scatter, label, resume; then every
element is compared with the checkpoint while serving goes on. Whatever fails, the old weights are
put back, the engine is resumed, and the old checkpoint is compared as well. An engine of which
even that cannot be said is `lost`: its process ends and is started again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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

POLL_S = 0.01
DEATH_POLL_S = 0.1
"""vLLM never answers what was asked of an engine that has died."""


class Timeouts(NamedTuple):
    """How long each stage of a change may take."""

    start_s: float = 1_800.0
    job_s: float = 600.0
    """Reading a patch, or comparing with a checkpoint, beside the running model."""
    pause_s: float = 30.0
    """Until the last step has ended; the same again to resume."""
    apply_s: float = 60.0


class EngineLost(RuntimeError):
    """It is not known what weights this engine holds, or it does not answer."""


@dataclass(frozen=True, slots=True)
class _Staged:
    policy_version: int
    folder: Path
    patch: Patch


class LiveWeights:
    """One engine's weights. `stage` and `swap` block, in a thread; the rest is for the loop."""

    def __init__(
        self,
        llm: AsyncLLM,
        folder: Path,
        policy_version: int,
        scratch: Path,
        timeouts: Timeouts = Timeouts(),  # noqa: B008  a tuple of numbers
    ) -> None:
        self._llm, self._folder, self._scratch = llm, folder, scratch
        self.timeouts = timeouts
        self.policy_version = policy_version
        self.generation = 0
        """One more with every change of the weights: a version that was refused may come again."""
        self.digest = weights_digest(read_weights(folder / WEIGHTS_FILE))
        self.is_open = asyncio.Event()
        """Clear while weights change: requests that come now wait."""
        self.is_open.set()
        self.lost: EngineLost | None = None
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()
        self._staged: _Staged | None = None

    async def start(self) -> None:
        """Map the weights and name their version. Raises where this model cannot be patched."""
        init = WeightTransferInitRequest(init_info={"folder": str(self._folder)})
        mapping = self._llm.init_weight_transfer_engine(init)
        await self._ask("mapping the weights", mapping, self.timeouts.start_s)
        await self._llm.update_weight_version(str(self.policy_version))
        await self._job("tendril_verify", str(self._folder))

    def stage(self, policy_version: int, folder: Path) -> str:
        """See `Engine.stage`."""
        path = self._scratch / f"{new_id()}.patch"
        try:
            base = self._folder if (self._folder / WEIGHTS_FILE).exists() else None
            patch = write_patch(path, base, folder)
            self._on_loop(self._stage(_Staged(policy_version, folder, patch)))
        except (OSError, ValueError) as error:  # not there, torn, or of another model
            raise SwapRefused(str(error)) from error
        finally:
            path.unlink(missing_ok=True)
        return patch.weights_digest

    async def _stage(self, staged: _Staged) -> None:
        async with self._changing:
            await self._job("tendril_stage", str(staged.patch.path))
            self._staged = staged

    def swap(self, policy_version: int, while_paused: Callable[[], Awaitable[None]]) -> SwapResult:
        """See `Engine.swap`; `while_paused` runs between the last old and the first new step."""
        return self._on_loop(self._swap(policy_version, while_paused))

    async def _swap(
        self, policy_version: int, while_paused: Callable[[], Awaitable[None]]
    ) -> SwapResult:
        async with self._changing:
            staged = self._staged
            if staged is None or staged.policy_version != policy_version:
                got = staged.policy_version if staged else "none"
                raise SwapRefused(f"expected version {policy_version} staged, got {got}")
            self._staged = None
            try:
                pause_ms = await self._change(staged, while_paused)
            except SwapRefused:
                await self._prove_old()
                raise
            self._folder, self.digest = staged.folder, staged.patch.weights_digest
            return SwapResult(policy_version, pause_ms, self.digest)

    async def _change(self, staged: _Staged, while_paused: Callable[[], Awaitable[None]]) -> float:
        """Returns how many milliseconds nothing was sampled. Raises `SwapRefused`, taken back."""
        previous, started = self.policy_version, time.perf_counter()
        async with self._paused():
            await self._apply(staged, previous)
            await while_paused()
        pause_ms = (time.perf_counter() - started) * 1000
        try:
            await self._job("tendril_verify", str(staged.folder))
        except SwapRefused as error:
            async with self._paused():
                await self._take_back(previous)
                await while_paused()
            raise SwapRefused(
                f"version {staged.policy_version} arrived damaged: {error}"
            ) from error
        return pause_ms

    @contextlib.asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """No step runs inside, and requests are kept; resumed however the block ends."""
        self.is_open.clear()
        try:
            pausing = self._llm.pause_generation(mode="keep", clear_cache=False)
            await self._ask("pausing", pausing, self.timeouts.pause_s)
            yield
        finally:
            try:
                resuming = self._llm.resume_generation()
                await self._ask("resuming", resuming, self.timeouts.pause_s)
            except SwapRefused as error:
                raise self._give_up(error) from error
            finally:
                self.is_open.set()

    async def _apply(self, staged: _Staged, previous: int) -> None:
        """Scatter and label, all or nothing."""
        self.generation += 1
        try:
            await self._ask("scattering", self._scatter(staged), self.timeouts.apply_s)
        except Exception as error:
            await self._take_back(previous)
            raise SwapRefused(f"applying version {staged.policy_version}: {error}") from error
        self.policy_version = staged.policy_version

    async def _scatter(self, staged: _Staged) -> None:
        update = WeightTransferUpdateRequest(update_info={"patch": str(staged.patch.path)})
        await self._llm.start_weight_update()
        await self._llm.update_weights(update)
        await self._llm.finish_weight_update(str(staged.policy_version))

    async def _take_back(self, policy_version: int) -> None:
        """The weights before the last update, again."""
        self.generation += 1
        try:
            await self._ask("taking back", self._restore(policy_version), self.timeouts.apply_s)
        except Exception as error:
            raise self._give_up(error) from error
        self.policy_version = policy_version

    async def _restore(self, policy_version: int) -> None:
        await self._llm.collective_rpc("tendril_take_back")
        await self._llm.update_weight_version(str(policy_version))

    async def _prove_old(self) -> None:
        """After a refusal: what serves on must be the old version, to the last element."""
        if self.lost is not None or not (self._folder / WEIGHTS_FILE).exists():
            return
        try:
            await self._job("tendril_verify", str(self._folder))
        except SwapRefused as error:
            raise self._give_up(error) from error

    def _give_up(self, error: Exception) -> EngineLost:
        self.lost = EngineLost(f"version {self.policy_version} cannot go on serving: {error}")
        log.error("%s", self.lost)
        return self.lost

    async def _job(self, call: str, argument: str) -> None:
        """Run one of the workers' jobs to its end. Raises `SwapRefused` with what went wrong."""
        failures = await self._ask(call, self._results(call, argument), self.timeouts.job_s)
        if failures:
            raise SwapRefused(f"{call} of {argument}: {failures[0]}")

    async def _results(self, call: str, argument: str) -> list[str]:
        await self._llm.collective_rpc(call, args=(argument,))
        while None in (results := await self._llm.collective_rpc("tendril_result")):
            await asyncio.sleep(POLL_S)
        return [result for result in results if result]

    async def _ask(self, what: str, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """The engine's answer. Raises `SwapRefused` if it is late, vLLM's error if it has died."""
        asking = asyncio.ensure_future(work)
        deadline = time.monotonic() + timeout_s
        try:
            while not asking.done():
                if self._llm.errored:
                    raise self._llm.dead_error
                if (left_s := deadline - time.monotonic()) <= 0:
                    raise SwapRefused(f"{what}: no answer in {timeout_s:g} s")
                await asyncio.wait({asking}, timeout=min(left_s, DEATH_POLL_S))
            return asking.result()
        finally:
            asking.cancel()

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
