"""Immutable objects in a folder, each named by the BLAKE3 of its bytes.

Any number of processes may share the folder. Putting is idempotent; getting always verifies.
"""

import re
import shutil
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from tendril.files import whole_file, write_whole
from tendril.records import StoredFile

DIGEST = re.compile(r"[0-9a-f]{64}")
COPY_BYTES = 1 << 20


class CorruptObject(ValueError):
    """What is stored is not what was put: missing, torn or altered."""

    def __init__(self, key: str, expected: str, got: str) -> None:
        super().__init__(f"{key}: expected {expected}, got {got}")


class BlobStore:
    """Objects below `root/objects`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, data: bytes) -> StoredFile:
        """Store `data`; `name` is what it is called below a checkpoint folder."""
        file = _stored_file(name, blake3(data).hexdigest(), len(data))
        if not self._intact(file):
            write_whole(self._path(file), data)
        return file

    def put_file(self, name: str, path: Path) -> StoredFile:
        """Store the file at `path` without holding it in memory.

        Raises `CorruptObject` if it changes meanwhile.
        """
        with path.open("rb") as source:
            file = _stored_file(name, *_digest(source))
            if self._intact(file):
                return file
            source.seek(0)
            with whole_file(self._path(file)) as target:
                shutil.copyfileobj(source, target, COPY_BYTES)
                target.flush()
                with Path(target.name).open("rb") as copy:
                    _check(file, *_digest(copy))
        return file

    def get(self, file: StoredFile) -> bytes:
        """The object's bytes; raises `CorruptObject` unless they are exactly what was put."""
        path = self._path(file)
        try:
            num_bytes = path.stat().st_size
            if num_bytes != file.num_bytes:
                raise CorruptObject(file.key, f"{file.num_bytes} bytes", f"{num_bytes} bytes")
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise CorruptObject(file.key, f"{file.num_bytes} bytes", "no such object") from error
        _check(file, blake3(data).hexdigest(), len(data))
        return data

    def has(self, file: StoredFile) -> bool:
        """Whether the object is there; its bytes are not verified."""
        return self._path(file).is_file()

    def _intact(self, file: StoredFile) -> bool:
        try:
            with self._path(file).open("rb") as stored:
                return _digest(stored) == (file.blake3, file.num_bytes)
        except FileNotFoundError:
            return False

    def _path(self, file: StoredFile) -> Path:
        """Keys come from manifests, so nothing but `objects/<blake3>` may reach the file system."""
        if not DIGEST.fullmatch(file.blake3) or file.key != f"objects/{file.blake3}":
            raise CorruptObject(file.key, f"objects/{file.blake3} with 64 hex digits", "that key")
        return self.root / file.key


def _stored_file(name: str, digest: str, num_bytes: int) -> StoredFile:
    return StoredFile(name=name, key=f"objects/{digest}", blake3=digest, num_bytes=num_bytes)


def _digest(source: BinaryIO) -> tuple[str, int]:
    """BLAKE3 and size of what is left to read."""
    hasher, num_bytes = blake3(), 0
    while block := source.read(COPY_BYTES):
        hasher.update(block)
        num_bytes += len(block)
    return hasher.hexdigest(), num_bytes


def _check(file: StoredFile, digest: str, num_bytes: int) -> None:
    if (digest, num_bytes) != (file.blake3, file.num_bytes):
        raise CorruptObject(
            file.key,
            f"{file.num_bytes} bytes with BLAKE3 {file.blake3}",
            f"{num_bytes} bytes with BLAKE3 {digest}",
        )
