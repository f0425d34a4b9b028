"""A worker that can be told to fail: `--worker-extension-cls`, loaded inside vLLM's own process."""

import os
import time
from collections.abc import Callable

import torch

from serving.vllm_engine.worker import WorkerExtension


class BadChange:
    """In a staged patch: fails when it is its turn."""

    def apply(self) -> None:
        raise RuntimeError("a bad change")

    def undo(self) -> None: ...


class FaultyWorker(WorkerExtension):
    """The worker's calls, and ways to break what they do."""

    fault_job_s: float = 0.0

    def _tendril_start(self, work: Callable[[], Callable[[], None]]) -> None:
        delay_s, self.fault_job_s = self.fault_job_s, 0.0

        def slow() -> Callable[[], None]:
            time.sleep(delay_s)
            return work()

        super()._tendril_start(slow)

    def fault_slow_job(self, seconds: float) -> None:
        """The next job begins that much later."""
        self.fault_job_s = seconds

    def fault_in_scatter(self) -> int:
        """The staged patch fails half-way; returns after how many changes."""
        staged = self.weight_transfer_engine.staged
        assert staged is not None
        half = len(staged[1]) // 2
        staged[1].insert(half, BadChange())  # type: ignore[arg-type]
        return half

    def fault_flip(self, parameter: str, position: int) -> None:
        """Damage one element, as a stray write would; the second time mends it."""
        weights = dict(self.model_runner.model.named_parameters())[parameter]
        with torch.no_grad():
            weights.view(-1)[position].neg_()

    def fault_busy(self, seconds: float) -> None:
        """The engine's own thread is stuck."""
        time.sleep(seconds)

    def fault_pid(self) -> int:
        return os.getpid()

    def fault_held(self) -> int:
        """Changes that are still kept to go back to."""
        return len(self.weight_transfer_engine.applied)
