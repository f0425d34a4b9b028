"""Source text for the autocomplete scenario: what the base model reads, and what its users type.

Two worlds that never overlap. `base_files` is Python's standard library and other permissively
licensed packages with its older conventions. `house_files` is the simulated company: packages
formatted with double quotes, magic trailing commas and type hints, which the base never reads.
Both are split by a hash of the file's path, so the split is the same on every machine.
"""

import hashlib
import importlib.util
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Split = Literal["train", "held_out"]

BASE_PACKAGES = {"numpy": "BSD-3-Clause", "sympy": "BSD-3-Clause", "setuptools": "MIT"}
HOUSE_PACKAGES = {
    "anyio": "MIT",
    "click": "BSD-3-Clause",
    "fastapi": "MIT",
    "huggingface_hub": "Apache-2.0",
    "jinja2": "BSD-3-Clause",
    "rich": "MIT",
    "starlette": "BSD-3-Clause",
    "typer": "MIT",
    "uvicorn": "BSD-3-Clause",
}
TABLES = ("_emoji_codes.py", "_cell_widths.py", "_unicode_data")
"""Below `rich`: generated tables of numbers, which nobody types."""
HELD_OUT_SHARE = 0.1
MIN_FILE_BYTES, MAX_FILE_BYTES = 600, 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file: its name below the package's parent folder, its text and its split."""

    name: str
    text: str
    split: Split


def base_files() -> list[SourceFile]:
    """The standard library (its tests included) and `BASE_PACKAGES`, sorted by name."""
    standard_library = Path(sysconfig.get_paths()["stdlib"])
    files = _read_tree(standard_library, "stdlib", skip=("site-packages", "ensurepip"))
    for package in BASE_PACKAGES:
        files += _read_tree(_package_folder(package), package, skip=("tests", "_vendor"))
    return files


def house_files() -> list[SourceFile]:
    """The simulated company's code, sorted by name."""
    files: list[SourceFile] = []
    for package in HOUSE_PACKAGES:
        files += _read_tree(_package_folder(package), package, skip=("tests", *TABLES))
    return files


def split_of(name: str) -> Split:
    """`held_out` for a fixed tenth of all names, by SHA-256; the rest is `train`."""
    fraction = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32
    return "held_out" if fraction < HELD_OUT_SHARE else "train"


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"package {package!r}: expected it installed, found nothing")
    return Path(spec.submodule_search_locations[0])


def _read_tree(root: Path, label: str, *, skip: tuple[str, ...]) -> list[SourceFile]:
    files: list[SourceFile] = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if any(part in skip for part in relative.parts):
            continue
        if not MIN_FILE_BYTES <= path.stat().st_size <= MAX_FILE_BYTES:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # the standard library's tests hold files that are broken on purpose
        name = f"{label}/{relative.as_posix()}"
        files.append(SourceFile(name=name, text=text, split=split_of(name)))
    return files
