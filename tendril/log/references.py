"""Records over the log's size limit: their bytes lie in a folder, a reference is on the log."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tendril.blobs import BlobStore, CorruptObject
from tendril.records import StoredFile

HEADER = "tendril-reference"
"""Of a record whose value is the JSON of a `StoredFile`, in the place of what that holds."""


class References:
    """Objects below `root/<topic>`, each named by its BLAKE3; processes may share them."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, topic: str, value: bytes) -> bytes:
        """Store `value`; returns the reference to append instead. Raises `OSError`."""
        return msgspec.json.encode(self._store(topic).put(topic, value))

    def get(self, topic: str, reference: bytes) -> bytes:
        """What was stored, or `reference` itself, which no record decodes from, where that is gone.

        So a deleted or damaged object becomes a dead letter and ends no reader. Raises `OSError`.
        """
        try:
            return self._store(topic).get(msgspec.json.decode(reference, type=StoredFile))
        except (CorruptObject, msgspec.DecodeError):
            return reference

    def expire(self, retention_s: Mapping[str, float]) -> int:
        """Delete what is older than its topic's retention; returns how many objects."""
        now, num_deleted = time.time(), 0
        for topic, kept_s in retention_s.items():
            for path in (self._root / topic / "objects").glob("*"):
                if path.is_file() and now - path.stat().st_mtime > kept_s:
                    path.unlink(missing_ok=True)
                    num_deleted += 1
        return num_deleted

    def delete_all(self, topics: Sequence[str]) -> None:
        """Forget every object of these topics."""
        for topic in topics:
            shutil.rmtree(self._root / topic, ignore_errors=True)

    def _store(self, topic: str) -> BlobStore:
        return BlobStore(self._root / topic)
