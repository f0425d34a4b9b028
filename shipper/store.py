"""The weight store: objects, a write-once manifest a version, and the pointer that nodes follow.

A version exists once its manifest does, so objects are put before it. All files appear whole and
the lock is the kernel's, so a process may die at any line and leave a consistent store.
"""

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from shipper.delta import decode_delta
from tendril.blobs import BlobStore, CorruptObject
from tendril.files import WorkspaceUnwritable, make_folder, write_whole
from tendril.records import PolicyManifest
from tendril.weights import TensorBytes, decode_weights, weights_digest

S = TypeVar("S", bound=msgspec.Struct)


class Pointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which version nodes should serve; `generation` grows by one with every move."""

    policy_version: int
    generation: int


class UnknownVersion(LookupError):
    """No manifest of that version is in the store."""


class VersionExists(ValueError):
    """A version is published once; a different manifest of it is refused."""


class PointerMoved(RuntimeError):
    """Someone else moved the pointer first; read it again and decide anew."""


class WeightStore:
    """A folder that any number of processes on one machine may share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = BlobStore(root)

    def write_manifest(self, manifest: PolicyManifest) -> None:
        """Publish a version; again with the same manifest changes nothing.

        Raises `VersionExists` for a different one.
        """
        path = self._manifest_path(manifest.policy_version)
        with self._locked():
            if not path.exists():
                write_whole(path, msgspec.json.encode(manifest))
            elif (published := _read(path, PolicyManifest)) != manifest:
                raise VersionExists(
                    f"version {manifest.policy_version}: expected the published manifest "
                    f"(weights {published.weights_digest}, at {published.published_at}), got "
                    f"another (weights {manifest.weights_digest}, at {manifest.published_at})"
                )

    def manifest(self, version: int) -> PolicyManifest:
        """Raises `UnknownVersion`, or `CorruptObject` if the file is not that manifest."""
        path = self._manifest_path(version)
        try:
            manifest = _read(path, PolicyManifest)
        except FileNotFoundError as error:
            raise UnknownVersion(
                f"version {version}: expected one of {self.versions()}, in {self.root}"
            ) from error
        if manifest.policy_version != version or manifest.schema > PolicyManifest.SCHEMA:
            raise CorruptObject(
                str(path),
                f"version {version} with schema <= {PolicyManifest.SCHEMA}",
                f"version {manifest.policy_version} with schema {manifest.schema}",
            )
        return manifest

    def versions(self) -> list[int]:
        """All published versions, ascending."""
        stems = (path.stem for path in (self.root / "versions").glob("*.json"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def pointer(self) -> Pointer | None:
        """Where the pointer stands; None before the first move."""
        try:
            return _read(self.root / "pointer.json", Pointer)
        except FileNotFoundError:
            return None

    def move_pointer(self, to_version: int, expected_generation: int | None) -> Pointer:
        """Compare and swap: move it if its generation is the expected one (None: no pointer yet).

        Of several movers with one expectation exactly one succeeds; the others get `PointerMoved`.
        Raises `UnknownVersion` for a version without a manifest.
        """
        self.manifest(to_version)
        with self._locked():
            now = self.pointer()
            generation = now.generation if now else None
            if generation != expected_generation:
                raise PointerMoved(
                    f"pointer: expected generation {expected_generation}, got {generation}"
                    + (f" at version {now.policy_version}" if now else "")
                )
            moved = Pointer(to_version, (generation or 0) + 1)
            write_whole(self.root / "pointer.json", msgspec.json.encode(moved))
        return moved

    def load_weights(self, version: int) -> dict[str, TensorBytes]:
        """The version's tensors, verified: from its snapshot, else by deltas from the nearest one.

        Raises `UnknownVersion`, `CorruptObject`, `DeltaError` or `InvalidWeights`.
        """
        chain = [self.manifest(version)]
        while not self._has_snapshot(chain[-1]):
            chain.append(self.manifest(_base_of(chain[-1])))
        tensors = self._snapshot(chain.pop())
        for manifest in reversed(chain):
            assert manifest.delta is not None  # `_base_of` saw to it
            tensors = decode_delta(tensors, self.blobs.get(manifest.delta))
            _check_digest(manifest, tensors)
        return tensors

    def _has_snapshot(self, manifest: PolicyManifest) -> bool:
        files = [file for file in manifest.snapshot if file.name.endswith(".safetensors")]
        return bool(files) and all(self.blobs.has(file) for file in files)

    def _snapshot(self, manifest: PolicyManifest) -> dict[str, TensorBytes]:
        tensors: dict[str, TensorBytes] = {}
        for file in manifest.snapshot:
            if file.name.endswith(".safetensors"):
                tensors |= decode_weights(self.blobs.get(file), f"{file.name} ({file.key})")
        _check_digest(manifest, tensors)
        return tensors

    def _manifest_path(self, version: int) -> Path:
        return self.root / "versions" / f"{version}.json"

    @contextmanager
    def releasing(self) -> Iterator[None]:
        """One release at a time: nobody sees the pointer moved and the log not yet told.

        Not to be nested.
        """
        with self._locked(".release.lock"):
            yield

    @contextmanager
    def _locked(self, name: str = ".lock") -> Iterator[None]:
        """One writer at a time. The kernel frees the lock of a process that dies."""
        path = self.root / name
        try:
            make_folder(self.root)
            file = path.open("ab")
        except OSError as error:
            raise WorkspaceUnwritable(path, error) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _read(path: Path, record: type[S]) -> S:
    try:
        return msgspec.json.decode(path.read_bytes(), type=record)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptObject(str(path), f"a {record.__name__}", str(error)) from error


def _base_of(manifest: PolicyManifest) -> int:
    """The version that the delta applies to: an older one, so that chains end."""
    base = manifest.base_version
    if manifest.delta is None or base is None or base >= manifest.policy_version:
        raise CorruptObject(
            f"version {manifest.policy_version}",
            "a snapshot, or a delta and an older base",
            f"no stored snapshot, base {base}, delta {manifest.delta}",
        )
    return base


def _check_digest(manifest: PolicyManifest, tensors: Mapping[str, TensorBytes]) -> None:
    got = weights_digest(tensors)
    if got != manifest.weights_digest:
        what = f"weights of version {manifest.policy_version}"
        raise CorruptObject(what, f"digest {manifest.weights_digest}", got)
