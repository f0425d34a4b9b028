"""A model as a Hugging Face folder: the files that make a version, and its tokenizer's digest."""

from pathlib import Path

from blake3 import blake3

FIRST_VERSION = 1
"""What the configured folder is imported as; every process starts from it."""
WEIGHTS_FILE = "model.safetensors"
PUBLISHED_DTYPE = "BF16"
"""Of every version's tensors, as safetensors spells it."""
TOKENIZER_FILE = "tokenizer.json"
REQUIRED_FILES = ("config.json", TOKENIZER_FILE, WEIGHTS_FILE)
OPTIONAL_FILES = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja")


def missing_files(folder: Path) -> list[str]:
    """Names of the files without which `folder` is no model."""
    return [name for name in REQUIRED_FILES if not (folder / name).is_file()]


def version_files(folder: Path) -> list[str]:
    """Names of the files of `folder` that belong to every version made from it."""
    return [name for name in (*REQUIRED_FILES, *OPTIONAL_FILES) if (folder / name).is_file()]


def tokenizer_digest(folder: Path) -> str:
    """BLAKE3 of its tokenizer file, the first 128 bits, hex."""
    return blake3((folder / TOKENIZER_FILE).read_bytes()).hexdigest()[:32]
