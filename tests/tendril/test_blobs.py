"""Objects are named by their bytes, put once, and verified whenever they are read."""

from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from tendril.blobs import BlobStore, CorruptObject


def test_an_object_is_named_by_its_blake3_and_put_once(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    file = blobs.put("model.safetensors", b"weights")
    assert file.key == "objects/" + blake3(b"weights").hexdigest()
    assert (file.name, file.num_bytes) == ("model.safetensors", 7)
    stored = tmp_path / file.key
    before = stored.stat().st_ino
    assert blobs.put("model.safetensors", b"weights") == file
    assert stored.stat().st_ino == before  # not written again
    assert blobs.get(file) == b"weights"


def test_a_file_is_stored_like_its_bytes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"weights" * 500_000)
    blobs = BlobStore(tmp_path)
    by_file = blobs.put_file("x", source)
    assert blobs.get(by_file) == b"weights" * 500_000
    assert blobs.put("x", b"weights" * 500_000) == by_file
    assert [path.name for path in (tmp_path / "objects").iterdir()] == [by_file.blake3]


@pytest.mark.parametrize("damaged", [b"", b"weight", b"weightz", b"weights+"])
def test_a_damaged_object_is_refused_and_mended_by_putting_it_again(
    tmp_path: Path, damaged: bytes
) -> None:
    blobs = BlobStore(tmp_path)
    file = blobs.put("x", b"weights")
    (tmp_path / file.key).write_bytes(damaged)
    with pytest.raises(CorruptObject, match=f"{file.key}: expected 7 bytes"):
        blobs.get(file)
    blobs.put("x", b"weights")
    assert blobs.get(file) == b"weights"


def test_a_missing_object_is_named(tmp_path: Path) -> None:
    file = BlobStore(tmp_path / "a").put("x", b"weights")
    assert not BlobStore(tmp_path / "b").has(file)
    with pytest.raises(CorruptObject, match=f"{file.key}: .* got no such object"):
        BlobStore(tmp_path / "b").get(file)


@pytest.mark.parametrize("key", ["objects/../secret", "/etc/passwd", "objects/"])
def test_a_key_that_leaves_the_store_is_refused(tmp_path: Path, key: str) -> None:
    file = BlobStore(tmp_path).put("x", b"weights")
    (tmp_path / "secret").write_bytes(b"weights")
    with pytest.raises(CorruptObject, match="expected objects/"):
        BlobStore(tmp_path).get(msgspec.structs.replace(file, key=key))
