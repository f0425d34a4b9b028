"""Puts a version into service, and takes it out again.

A ship writes delta, manifest, pointer, log, in that order. Nodes follow the pointer, so nothing is
visible before it moves. A process killed after that leaves the log one event behind; `reconcile`
appends it. Killed before, it leaves objects that the next try finds and uses again.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from shipper.delta import DeltaError, decode_delta, encode_delta
from shipper.releases import RELEASES_KEY, ReleaseHistory, read_history, read_records
from shipper.store import Pointer, PointerMoved, VersionExists, WeightStore
from tendril.blobs import CorruptObject
from tendril.log import EventLog
from tendril.model_folder import (
    FIRST_VERSION,
    PUBLISHED_DTYPE,
    WEIGHTS_FILE,
    missing_files,
    tokenizer_digest,
    version_files,
)
from tendril.records import EvalReport, PolicyManifest, Release, ReleaseState, StoredFile
from tendril.weights import (
    InvalidWeights,
    TensorBytes,
    decode_weights,
    read_weights,
    weights_digest,
)


class ShipRefused(RuntimeError):
    """The release does not happen, and why."""


class Shipper:
    """Any number of processes may ship: the pointer moves by compare-and-swap."""

    def __init__(
        self, store: WeightStore, log: EventLog, now: Callable[[], float] = time.time
    ) -> None:
        self._store, self._log, self._now = store, log, now

    def bootstrap(self, checkpoint_folder: Path) -> PolicyManifest:
        """Import a Hugging Face folder as version 1 and put it into service; repeats do nothing.

        Raises `ShipRefused` for a missing file, or if version 1 already is something else.
        """
        manifest = self._import(checkpoint_folder)
        stored = self._write_once(manifest)
        if self._store.pointer() is None:
            with suppress(PointerMoved):  # another process has just done the same
                self._store.move_pointer(FIRST_VERSION, None)
        self.reconcile()
        return stored

    def _write_once(self, manifest: PolicyManifest) -> PolicyManifest:
        """What the store has of this version from now on: the same weights, or `ShipRefused`."""
        version = manifest.policy_version
        if version not in self._store.versions():
            with suppress(VersionExists):  # another process has just written it
                self._store.write_manifest(manifest)
        stored = self._store.manifest(version)
        if stored.weights_digest != manifest.weights_digest:
            raise ShipRefused(
                f"version {version} in the store has weights {stored.weights_digest}, got "
                f"{manifest.weights_digest}: a version is published once"
            )
        return stored

    def _import(self, folder: Path) -> PolicyManifest:
        if missing := missing_files(folder):
            raise ShipRefused(f"{folder}: expected a Hugging Face folder, got none of {missing}")
        return PolicyManifest(
            policy_version=FIRST_VERSION,
            parent=None,
            snapshot=tuple(
                self._store.blobs.put_file(name, folder / name) for name in version_files(folder)
            ),
            weights_digest=weights_digest(_read_published(folder / WEIGHTS_FILE)),
            tokenizer_digest=tokenizer_digest(folder),
            published_at=self._now(),
        )

    def ship(
        self,
        version: int,
        *,
        actor: str,
        reason: str,
        evidence: EvalReport | None = None,
        force: bool = False,
    ) -> PolicyManifest:
        """Put `version` into service. What the gate did not pass needs `force`.

        Raises `ShipRefused`, or `PointerMoved` if another release won the race.
        """
        pointer = self._pointer()
        history = self.reconcile()
        live = pointer.policy_version
        state = history.state_of(version)
        self._refuse_unknown(version, history)
        _refuse_unfit(version, live, state, evidence, force)
        manifest = self._publish(version, live)
        if force and state != "gate_passed":
            reason = f"{reason} (forced: was {state or 'not gated'})"
        with self._store.releasing():
            self._store.move_pointer(version, pointer.generation)
            self._append(version, "promoted", actor, reason, evidence=evidence)
        return manifest

    def rollback(self, to_version: int | None, *, actor: str, reason: str) -> int:
        """Serve an earlier live version again (None: the one before); returns which.

        Raises `ShipRefused`, or `PointerMoved` if another release won the race.
        """
        pointer = self._pointer()
        history = self.reconcile()
        target = history.previous if to_version is None else to_version
        if target is None:
            raise ShipRefused(f"version {history.live} has no version before it to go back to")
        if target == history.live:
            raise ShipRefused(f"version {target} is already live")
        self._refuse_unknown(target, history)
        if target not in history.served:
            raise ShipRefused(
                f"version {target} is not behind live version {history.live}: expected one of "
                f"{list(history.served[:-1])}; to go forward, ship it"
            )
        with self._store.releasing():
            self._store.move_pointer(target, pointer.generation)
            self._append(history.live, "rolled_back", actor, reason, target=target)
        return target

    def reconcile(self) -> ReleaseHistory:
        """Make the log say what the pointer says: append the event that a crash swallowed."""
        with self._store.releasing():
            self._tell_log(read_history(self._log))
        return read_history(self._log)

    def is_behind(self, history: ReleaseHistory) -> bool:
        """Whether the pointer stands elsewhere than `history` ends."""
        pointer = self._store.pointer()
        return pointer is not None and history.served[-1:] != (pointer.policy_version,)

    def _refuse_unknown(self, version: int, history: ReleaseHistory) -> None:
        """A number that no version ever had: no force ships it."""
        if history.state_of(version) or find_candidate(self._log, version):
            return
        if version not in (stored := self._store.versions()):
            known = [*stored, *(event.policy_version for event in history.events)]
            raise ShipRefused(
                f"version {version} does not exist: the newest is {max(known)} (tendril history)"
            )

    def _tell_log(self, history: ReleaseHistory) -> None:
        pointer = self._store.pointer()
        if pointer is None or not self.is_behind(history):
            return
        if pointer.policy_version == FIRST_VERSION and not history.served:
            self._log.append([("1", self._store.manifest(FIRST_VERSION))])
            self._append(FIRST_VERSION, "published", "bootstrap", "the base checkpoint")
            self._append(FIRST_VERSION, "promoted", "bootstrap", "the base checkpoint")
        elif pointer.policy_version in history.served:
            self._append(
                history.live, "rolled_back", "reconcile", "the pointer was already there",
                target=pointer.policy_version,
            )  # fmt: skip
        else:
            self._append(
                pointer.policy_version, "promoted", "reconcile", "the pointer was already there"
            )

    def _pointer(self) -> Pointer:
        """Read before the history, so that the swap fails if anything changed since."""
        pointer = self._store.pointer()
        if pointer is None:
            raise ShipRefused(
                "the store is empty: no version serves yet. `tendril up` imports the first; for "
                "a demo, put --config .tendril/demo/tendril.toml before the command"
            )
        return pointer

    def _append(
        self,
        version: int,
        state: ReleaseState,
        actor: str,
        reason: str,
        *,
        target: int | None = None,
        evidence: EvalReport | None = None,
    ) -> None:
        release = Release(
            policy_version=version,
            state=state,
            target_version=target,
            actor=actor,
            reason=reason,
            at=self._now(),
            evidence=evidence,
        )
        self._log.append([(RELEASES_KEY, release)])

    def _publish(self, version: int, live: int) -> PolicyManifest:
        """The manifest of `version` in the store, written with a proven delta if it is new."""
        candidate = find_candidate(self._log, version)
        if version in self._store.versions():
            return self._write_once(candidate or self._store.manifest(version))
        if candidate is None:
            raise ShipRefused(f"version {version} is neither in the store nor in the log")
        delta = self._store_delta(candidate, live)
        return self._write_once(msgspec.structs.replace(candidate, base_version=live, delta=delta))

    def _store_delta(self, candidate: PolicyManifest, live: int) -> StoredFile:
        """Encode, decode again, compare bit for bit, and only then store."""
        version = candidate.policy_version
        try:
            live_tokenizer = self._store.manifest(live).tokenizer_digest
            if candidate.tokenizer_digest != live_tokenizer:
                raise ShipRefused(
                    f"version {version}: expected tokenizer {live_tokenizer}, "
                    f"got {candidate.tokenizer_digest}"
                )
            target, base = self._snapshot(candidate), self._store.load_weights(live)
            delta = encode_delta(base, target)
            decoded = weights_digest(decode_delta(base, delta))
        except (DeltaError, CorruptObject, InvalidWeights) as error:
            raise ShipRefused(f"version {version}: {error}") from error
        if decoded != candidate.weights_digest:
            raise ShipRefused(
                f"version {version}: expected weights {candidate.weights_digest} from its delta, "
                f"got {decoded}"
            )
        return self._store.blobs.put(f"{live}-to-{version}.delta", delta)

    def _snapshot(self, manifest: PolicyManifest) -> dict[str, TensorBytes]:
        found = [file for file in manifest.snapshot if file.name == WEIGHTS_FILE]
        if not found:
            raise ShipRefused(f"version {manifest.policy_version}: no {WEIGHTS_FILE} in its files")
        return decode_weights(self._store.blobs.get(found[0]), found[0].key)


def _read_published(path: Path) -> dict[str, TensorBytes]:
    """The weights at `path`; refuses a dtype that no later version could be a delta of."""
    tensors = read_weights(path)
    others = sorted({tensor.dtype for tensor in tensors.values()} - {PUBLISHED_DTYPE})
    if others:
        raise ShipRefused(
            f"{path}: expected {PUBLISHED_DTYPE} tensors, which versions are published in, got "
            f"{', '.join(others)}; convert it: model.to(torch.bfloat16).save_pretrained(folder)"
        )
    return tensors


def _refuse_unfit(
    version: int, live: int, state: str | None, evidence: EvalReport | None, force: bool
) -> None:
    if version == live:
        raise ShipRefused(f"version {version} is already live")
    if force:
        return
    if state != "gate_passed":
        raise ShipRefused(
            f"version {version}: expected state gate_passed, got {state or 'none yet'}; --force "
            "ships it all the same"
        )
    if evidence is not None and evidence.against_version != live:
        raise ShipRefused(
            f"version {version} was gated against version {evidence.against_version}, "
            f"but version {live} is live"
        )


def find_candidate(log: EventLog, version: int) -> PolicyManifest | None:
    """The newest manifest that the learner published under this version."""
    manifests = list(read_records(log, PolicyManifest))
    return next((m for m in reversed(manifests) if m.policy_version == version), None)
