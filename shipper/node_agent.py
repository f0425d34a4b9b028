"""The node agent: brings one engine to the version that the store's pointer names.

Each tick compares what the engine really serves, by digest and not by label, with the pointer. A
version is staged on disk first; the engine swaps only to weights it has proven to hold. Whatever
fails, the old version serves, the refusal is on the log, and the agent tries again with back-off.
"""

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from shipper.delta import DeltaError
from shipper.engine_client import EngineClient, EngineDown, EngineRefused, EngineStatus, SwapReply
from shipper.releases import read_history
from shipper.staging import (
    Staged,
    WrongWeights,
    check_weights,
    from_snapshot,
    remove_parts,
    sources,
    version_folder,
)
from shipper.store import Pointer, UnknownVersion, WeightStore
from tendril.blobs import CorruptObject
from tendril.files import write_whole
from tendril.log import EventLog, LogUnavailable
from tendril.records import NodeStatus, PolicyManifest
from tendril.settings import ShippingSettings
from tendril.telemetry import NO_TELEMETRY, Telemetry
from tendril.weights import InvalidWeights

logger = logging.getLogger(__name__)
HEARTBEAT_S = 2.0
FIRST_RETRY_S = 0.5
MAX_RETRY_S = 10.0
STAGING_ERRORS = (
    CorruptObject, DeltaError, InvalidWeights, WrongWeights, UnknownVersion, OSError,
    EngineDown, EngineRefused,
)  # fmt: skip


class Current(msgspec.Struct, frozen=True):
    """`current.json`: what an engine that starts should load."""

    policy_version: int


class NodeAgent:
    """One engine's agent. `tick` does what is due and returns."""

    def __init__(
        self,
        store: WeightStore,
        log: EventLog,
        engine: EngineClient,
        folder: Path,
        settings: ShippingSettings,
        telemetry: Telemetry = NO_TELEMETRY,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._log, self._engine, self._telemetry = store, log, engine, telemetry
        self._folder, self._versions = folder, folder / "versions"
        self._settings, self._now = settings, now
        self._heartbeat_at = 0.0
        self._retry_at = 0.0
        self._retry_s = FIRST_RETRY_S
        self._refused_generation: int | None = None
        remove_parts(self._versions)

    def tick(self) -> None:
        """Look at pointer and engine, and act on the difference."""
        try:
            status = self._engine.status()
        except (EngineDown, EngineRefused) as error:
            self._tell_silence(str(error))
            return
        try:
            pointer = self._store.pointer()
        except (CorruptObject, OSError) as error:
            pointer = None
            if self._now() >= self._heartbeat_at:
                self._refuse(status, str(error))
        if pointer is not None and self._is_due(pointer.generation):
            try:
                status = self._reconcile(pointer, status)
                self._retry_s, self._refused_generation = FIRST_RETRY_S, None
            except STAGING_ERRORS as error:
                self._refuse(status, str(error))
                self._back_off(pointer.generation)
        self._heartbeat(status)

    def _is_due(self, generation: int) -> bool:
        """A moved pointer is tried at once, a refused one again after its back-off."""
        return generation != self._refused_generation or self._now() >= self._retry_at

    def _back_off(self, generation: int) -> None:
        if generation != self._refused_generation:
            self._retry_s = FIRST_RETRY_S
        self._refused_generation = generation
        self._retry_at = self._now() + self._retry_s
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def _reconcile(self, pointer: Pointer, status: EngineStatus) -> EngineStatus:
        version = pointer.policy_version
        if self._is_settled(version, status):
            return status
        manifest = self._store.manifest(version)
        if (status.policy_version, status.weights_digest) == (version, manifest.weights_digest):
            self._keep(manifest)
            return status
        with self._telemetry.span("tendril.shipper.stage"):
            staged = self._stage(manifest, status)
        if self._store.pointer() != pointer:
            return status  # moved meanwhile, perhaps back: the next tick follows it
        reply = self._swap(manifest)
        self._telemetry.record("tendril.shipper.swap.pause", reply.pause_ms)
        self._set_current(version)
        status = msgspec.structs.replace(
            status, policy_version=version, weights_digest=reply.weights_digest
        )
        self._report(status, "serving", swap_pause_ms=reply.pause_ms, staged=staged)
        self._prune(version)
        return status

    def _is_settled(self, version: int, status: EngineStatus) -> bool:
        """Nothing to do, in one small read a tick."""
        return (
            status.policy_version == version
            and self._current() == version
            and version_folder(self._versions, version).exists()
            and status.weights_digest == self._store.manifest(version).weights_digest
        )

    def _keep(self, manifest: PolicyManifest) -> None:
        """The engine has the version already: have its folder too, as base of the next delta."""
        folder = version_folder(self._versions, manifest.policy_version)
        if not folder.exists():
            from_snapshot(self._store, manifest, folder)
        self._set_current(manifest.policy_version)

    def _stage(self, manifest: PolicyManifest, status: EngineStatus) -> Staged:
        """From the first source that works, to where the engine proves that it holds it."""
        self._report(status, "staging", detail=f"version {manifest.policy_version}")
        failures: list[str] = []
        for name, take in sources(self._store, manifest, self._versions, status.policy_version):
            try:
                staged = take()
                reply = self._engine.stage(manifest.policy_version, staged.folder.absolute())
                check_weights(manifest, reply.weights_digest)
                return staged
            except (EngineDown, EngineRefused):
                raise
            except STAGING_ERRORS as error:
                failures.append(f"{name}: {error}")
                self._refuse(status, failures[-1])
        raise WrongWeights(f"version {manifest.policy_version}: no source is good: {failures}")

    def _swap(self, manifest: PolicyManifest) -> SwapReply:
        reply = self._engine.swap(manifest.policy_version)
        if reply.policy_version != manifest.policy_version:
            raise EngineRefused(
                f"swap: expected version {manifest.policy_version}, got {reply.policy_version}"
            )
        check_weights(manifest, reply.weights_digest)
        return reply

    def _current(self) -> int | None:
        try:
            text = (self._folder / "current.json").read_bytes()
            return msgspec.json.decode(text, type=Current).policy_version
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _set_current(self, version: int) -> None:
        write_whole(self._folder / "current.json", msgspec.json.encode(Current(version)))

    def _prune(self, version: int) -> None:
        """Keep the newest versions, the live one and the one that a rollback goes to."""
        kept = {int(p.name): p for p in self._versions.iterdir() if p.name.isdecimal()}
        try:
            needed = {version, *read_history(self._log).served[-2:]}
        except (LogUnavailable, TimeoutError) as error:
            logger.warning("old versions stay: %s", error)
            return
        for old in sorted(kept)[: -self._settings.keep_versions]:
            if old not in needed:
                shutil.rmtree(kept[old], ignore_errors=True)

    def _refuse(self, status: EngineStatus, detail: str) -> None:
        logger.error("version %d keeps serving: %s", status.policy_version, detail)
        self._report(status, "refused", detail=detail)

    def _heartbeat(self, status: EngineStatus) -> None:
        if self._now() >= self._heartbeat_at:
            self._report(status, "serving")

    def _tell_silence(self, detail: str) -> None:
        if self._now() >= self._heartbeat_at:
            self._heartbeat_at = self._now() + HEARTBEAT_S
            logger.warning("waiting for the engine: %s", detail)

    def _report(
        self,
        status: EngineStatus,
        state: Literal["serving", "staging", "refused"],
        *,
        detail: str = "",
        swap_pause_ms: float | None = None,
        staged: Staged | None = None,
    ) -> None:
        """Append a `NodeStatus`. Without a log the swap still counts, so a failure is only told."""
        self._heartbeat_at = self._now() + HEARTBEAT_S
        record = NodeStatus(
            node=self._settings.node,
            at=self._now(),
            policy_version=status.policy_version,
            weights_digest=status.weights_digest,
            state=state,
            detail=detail,
            swap_pause_ms=swap_pause_ms,
            fetched_bytes=staged.fetched_bytes if staged else None,
            full_bytes=staged.full_bytes if staged else None,
            used_delta=staged.used_delta if staged else None,
            num_running=status.num_running,
            num_waiting=status.num_waiting,
        )
        try:
            self._log.append([(self._settings.node, record)])
        except LogUnavailable as error:
            logger.error("node status %s is lost: %s", state, error)
