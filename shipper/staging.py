"""A version as a whole, verified checkpoint folder on the node's disk, from the cheapest source.

Kept folder, else delta on the version that serves, else snapshot. Nothing here touches the engine.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from shipper.delta import decode_delta
from shipper.store import WeightStore
from tendril.files import make_folder, write_whole
from tendril.model_folder import WEIGHTS_FILE
from tendril.records import PolicyManifest, StoredFile
from tendril.weights import decode_weights, encode_weights, read_weights, weights_digest


class WrongWeights(ValueError):
    """What was read or rebuilt is not the version that the manifest names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A version that the engine can load, and what it cost."""

    folder: Path
    fetched_bytes: int
    full_bytes: int
    used_delta: bool


def sources(
    store: WeightStore, manifest: PolicyManifest, versions: Path, engine_version: int | None
) -> Iterator[tuple[str, Callable[[], Staged]]]:
    """Ways to stage, best first, each with its name.

    Each raises `CorruptObject`, `DeltaError`, `InvalidWeights`, `WrongWeights` or `OSError`, and
    then leaves nothing behind.
    """
    folder = version_folder(versions, manifest.policy_version)
    if folder.exists():
        yield "kept folder", lambda: from_kept(manifest, folder)
    base = manifest.base_version
    if manifest.delta is not None and base is not None and base == engine_version:
        base_folder = version_folder(versions, base)
        if base_folder.exists():
            yield "delta", lambda: from_delta(store, manifest, base_folder, folder)
    yield "snapshot", lambda: from_snapshot(store, manifest, folder)


def from_kept(manifest: PolicyManifest, folder: Path) -> Staged:
    """The folder that is there already; nothing is fetched."""
    try:
        check_weights(manifest, weights_digest(read_weights(folder / WEIGHTS_FILE)))
        for file in _other_files(manifest):
            _check_file(file, (folder / file.name).read_bytes())
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _staged(manifest, folder, 0, used_delta=False)


def from_delta(
    store: WeightStore, manifest: PolicyManifest, base_folder: Path, folder: Path
) -> Staged:
    """The base's folder with the delta applied; other files are copied where unchanged."""
    assert manifest.delta is not None  # `sources` saw to both
    assert manifest.base_version is not None
    base_manifest = store.manifest(manifest.base_version)
    base = read_weights(base_folder / WEIGHTS_FILE)
    check_weights(base_manifest, weights_digest(base))
    tensors = decode_delta(base, store.blobs.get(manifest.delta))
    check_weights(manifest, weights_digest(tensors))
    files = {WEIGHTS_FILE: encode_weights(tensors)}
    fetched_bytes = manifest.delta.num_bytes
    unchanged = {(file.name, file.blake3) for file in base_manifest.snapshot}
    for file in _other_files(manifest):
        if (file.name, file.blake3) in unchanged:
            files[file.name] = (base_folder / file.name).read_bytes()
            _check_file(file, files[file.name])
        else:
            files[file.name] = store.blobs.get(file)
            fetched_bytes += file.num_bytes
    write_folder(folder, files)
    return _staged(manifest, folder, fetched_bytes, used_delta=True)


def from_snapshot(store: WeightStore, manifest: PolicyManifest, folder: Path) -> Staged:
    """All files from the store."""
    files = {file.name: store.blobs.get(file) for file in manifest.snapshot}
    if WEIGHTS_FILE not in files:
        raise WrongWeights(f"version {manifest.policy_version}: its snapshot has no {WEIGHTS_FILE}")
    check_weights(manifest, weights_digest(decode_weights(files[WEIGHTS_FILE], str(folder))))
    write_folder(folder, files)
    fetched_bytes = sum(file.num_bytes for file in manifest.snapshot)
    return _staged(manifest, folder, fetched_bytes, used_delta=False)


def check_weights(manifest: PolicyManifest, digest: str) -> None:
    """Raises `WrongWeights` unless `digest` is the manifest's."""
    if digest != manifest.weights_digest:
        raise WrongWeights(
            f"version {manifest.policy_version}: expected weights {manifest.weights_digest}, "
            f"got {digest}"
        )


def _check_file(file: StoredFile, data: bytes) -> None:
    if (got := blake3(data).hexdigest()) != file.blake3:
        raise WrongWeights(f"{file.name}: expected BLAKE3 {file.blake3}, got {got}")


def version_folder(versions: Path, version: int) -> Path:
    return versions / str(version)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put a whole folder at `folder`, replacing what is there. Raises `OSError`."""
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.part")
    try:
        make_folder(aside)
        for name, data in files.items():
            write_whole(aside / name, data)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(aside, folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def remove_parts(versions: Path) -> None:
    """Clear what a killed writer left."""
    for part in versions.glob(".*.part"):
        shutil.rmtree(part, ignore_errors=True)


def _other_files(manifest: PolicyManifest) -> list[StoredFile]:
    return [file for file in manifest.snapshot if file.name != WEIGHTS_FILE]


def _staged(
    manifest: PolicyManifest, folder: Path, fetched_bytes: int, *, used_delta: bool
) -> Staged:
    full_bytes = sum(file.num_bytes for file in manifest.snapshot if file.name == WEIGHTS_FILE)
    return Staged(
        folder=folder, fetched_bytes=fetched_bytes, full_bytes=full_bytes, used_delta=used_delta
    )
