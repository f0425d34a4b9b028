"""Model folders: which files count, and what names a tokenizer."""

from pathlib import Path

from tendril.model_folder import missing_files, tokenizer_digest, version_files


def test_required_files_are_missed_and_strangers_left_out(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "notes.txt"):
        (tmp_path / name).touch()
    assert missing_files(tmp_path) == ["model.safetensors"]
    assert version_files(tmp_path) == ["config.json", "tokenizer.json", "tokenizer_config.json"]


def test_a_tokenizer_is_named_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"")
    assert tokenizer_digest(tmp_path) == "af1349b9f5f9a1a6a0404dea36dcc949"  # BLAKE3 of nothing
