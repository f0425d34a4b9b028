"""What runs inside vLLM's workers: our weight-transfer engine and the calls that stage for it.

Importing this module, which vLLM does before it loads the model, registers the engine under the
name `tendril`. Staging reads, translates and checks a patch in a thread beside the running model;
only what was prepared there is put in its place while requests are held.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from torch import Tensor, nn
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.platforms import current_platform

from serving.vllm_engine.coordinates import CoordinateMap, NotMovable
from serving.vllm_engine.packing import Exchange, exchange, keep_plain_weights
from serving.vllm_engine.patch import INDEX, NEW, OLD
from tendril.model_folder import WEIGHTS_FILE

BACKEND = "tendril"
VERIFY_ELEMENTS = 4_000_000
"""Compared at once, so that the check's memory stays small."""

if current_platform.is_cpu():
    keep_plain_weights()


@dataclass(frozen=True, slots=True)
class Scatter:
    """Elements of one parameter, in the parameter's dtype, to be written in place."""

    name: str
    parameter: Tensor  # flat view
    position: Tensor
    old: Tensor
    new: Tensor

    def apply(self) -> None:
        self.parameter.index_copy_(0, self.position, self.new)

    def undo(self) -> None:
        self.parameter.index_copy_(0, self.position, self.old)

    def fits(self) -> bool:
        """Whether the parameter still holds what the patch was made against."""
        return torch.equal(self.parameter[self.position], self.old)


Change: TypeAlias = Scatter | Exchange


@dataclass
class InitInfo(WeightTransferInitInfo):
    """The folder that the model was loaded from."""

    folder: str


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The patch file that was staged."""

    patch: str


class PatchEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Applies a staged patch, all of it or nothing."""

    init_info_cls, update_info_cls = InitInfo, UpdateInfo
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Find out where the checkpoint's elements lie. Raises `NotMovable` where they cannot."""
        with opened(Path(init_info.folder) / WEIGHTS_FILE) as checkpoint:
            tensors = {name: checkpoint.get_tensor(name) for name in checkpoint.keys()}  # noqa: SIM118
            self.map = CoordinateMap.build(self.model, self.model.load_weights, tensors)
        if self.parallel_config.world_size == 1 and (missing := self.map.missing()):
            raise NotMovable(f"elements of {missing[:3]} are nowhere in the model")
        self.staged: tuple[str, list[Change]] | None = None
        self.applied: list[Change] = []

    def start_weight_update(self) -> None:
        self.applied = []

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    @torch.no_grad()
    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self.staged is None or self.staged[0] != update_info.patch:
            got = self.staged[0] if self.staged else "none"
            raise ValueError(f"expected {update_info.patch} to be staged, got {got}")
        _, changes = self.staged
        self.staged = None
        try:
            for change in changes:
                self.applied.append(change)  # before: an interrupted change is undone as well
                change.apply()
        except BaseException:
            self.take_back()
            raise

    @torch.no_grad()
    def take_back(self) -> None:
        """Restore what the last update overwrote."""
        for change in reversed(self.applied):
            change.undo()
        self.applied = []

    def finish_weight_update(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def shutdown(self) -> None:
        self.staged, self.applied = None, []


def opened(path: Path) -> Any:
    """The tensors of a safetensors file, mapped rather than read."""
    return safe_open(path, framework="pt", device="cpu")


@torch.no_grad()
def changes_of(path: Path, model: nn.Module, places: CoordinateMap) -> list[Change]:
    """The patch in this worker's own coordinates. Raises `ValueError` on another base.

    Written in place, so that pointers stay; on a CPU, which packs weights, exchanged whole.
    """
    scatters = list(scatters_of(path, model, places))
    if not current_platform.is_cpu():
        return list(scatters)
    by_name: dict[str, list[Scatter]] = {}
    for scatter in scatters:
        by_name.setdefault(scatter.name, []).append(scatter)
    parameters = dict(model.named_parameters())
    changes: list[Change] = []
    for name, mine in by_name.items():
        new = parameters[name].detach().clone()
        for scatter in mine:
            new.view(-1).index_copy_(0, scatter.position, scatter.new)
        changes.append(exchange(model, parameters[name], new))
    return changes


def scatters_of(path: Path, model: nn.Module, places: CoordinateMap) -> Iterator[Scatter]:
    """One for every parameter that an element of a changed tensor lies in."""
    parameters = {n: p.detach().view(-1) for n, p in model.named_parameters()}
    with opened(path) as patch:
        names = set(patch.keys())
        for key in sorted(names):
            if not key.endswith(NEW):
                continue
            name = key.removesuffix(NEW)
            index = patch.get_tensor(name + INDEX) if name + INDEX in names else None
            old = patch.get_tensor(name + OLD) if name + OLD in names else None
            for target, mask, found in places.places(name, index):
                flat = parameters[target]
                position = found.to(flat.device)
                # Without a base to compare with, what is there now is what to go back to.
                before = flat[position] if old is None else old[mask].to(flat.device, flat.dtype)
                new = patch.get_tensor(key)[mask].to(flat.device, flat.dtype)
                scatter = Scatter(target, flat, position, before, new)
                if not scatter.fits():
                    raise ValueError(
                        f"{target}: holds other weights than the patch was made against"
                    )
                yield scatter


class WorkerExtension:
    """Calls that the serving process makes on every worker; each answers at once or is polled."""

    weight_transfer_engine: PatchEngine
    model_runner: Any
    _tendril_job: Future[Callable[[], None]]
    _weight_update_active: bool

    def tendril_stage(self, patch: str) -> None:
        """Read and translate a patch beside the running model; ask `tendril_result` for the end."""
        engine = self.weight_transfer_engine

        def work() -> Callable[[], None]:
            changes = changes_of(Path(patch), engine.model, engine.map)
            return lambda: setattr(engine, "staged", (patch, changes))

        self._tendril_start(work)

    def tendril_verify(self, folder: str) -> None:
        """Compare every element with the checkpoint in `folder`; ask `tendril_result`.

        Weights that are as they should be need no way back: what it held is freed.
        """
        engine = self.weight_transfer_engine

        def work() -> Callable[[], None]:
            verify(Path(folder) / WEIGHTS_FILE, engine.model, engine.map)
            return lambda: setattr(engine, "applied", [])

        self._tendril_start(work)

    def tendril_take_back(self) -> None:
        """Undo the last update, wherever it stopped; one that still runs ends first."""
        self.weight_transfer_engine.take_back()
        self.weight_transfer_engine.reset_weight_update_target()
        self._weight_update_active = False  # else vLLM would refuse every later update

    def _tendril_start(self, work: Callable[[], Callable[[], None]]) -> None:
        """Run `work` in a thread. What it returns is called once the end is asked for.

        So a job that was given up and ends late neither answers for the next nor changes a thing.
        """
        job: Future[Callable[[], None]] = Future()

        def run() -> None:
            try:
                job.set_result(work())
            except BaseException as error:  # noqa: BLE001  told to whoever polls
                job.set_exception(error)

        self._tendril_job = job
        threading.Thread(target=run, name="tendril", daemon=True).start()

    def tendril_result(self) -> str | None:
        """None while the job runs, else what went wrong, or nothing."""
        job = self._tendril_job
        if not job.done():
            return None
        if (error := job.exception()) is not None:
            return f"{type(error).__name__}: {error}"
        job.result()()
        return ""


@torch.no_grad()
def verify(path: Path, model: nn.Module, places: CoordinateMap) -> None:
    """Raises `ValueError` where a parameter differs from the checkpoint in any element."""
    parameters = {n: p.detach().view(-1) for n, p in model.named_parameters()}
    with opened(path) as checkpoint:
        for name in sorted(checkpoint.keys()):
            stored = checkpoint.get_tensor(name).view(-1)
            for target, source, place in places.pieces(name, VERIFY_ELEMENTS):
                flat = parameters[target]
                if not torch.equal(flat[place], stored[source].to(flat.device, flat.dtype)):
                    raise ValueError(f"{target}: differs from {name} of {path}")


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, PatchEngine)
