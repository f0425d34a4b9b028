"""Opens the wheels of real data that `make` fetched: zip files beside the installed packages.

Nothing of them is installed or copied into the repository. requirements/data.lock says what each
holds and under which licence.
"""

import re
import sys
import zipfile
from pathlib import Path

FOLDER = Path(sys.prefix) / "data"
MAKE_TARGET = "make data"


class DataMissing(FileNotFoundError):
    """A wheel is not there; says which command fetches it."""


def wheel(name: str, version: str | None = None, *, folder: Path = FOLDER) -> zipfile.ZipFile:
    """The wheel of distribution `name`, open for reading; `version` where several are there.

    Raises `DataMissing`, and `ValueError` where the version is needed and was not given.
    """
    found = sorted(file for file in folder.glob("*.whl") if _is_of(file, name, version))
    if not found:
        raise DataMissing(
            f"expected the wheel of {name} {version or ''} in {folder}, got none. "
            f"Run `{MAKE_TARGET}`, which fetches what requirements/data.lock names"
        )
    if len(found) > 1:
        versions = [file.name.split("-")[1] for file in found]
        raise ValueError(f"{name}: expected one version to be named, got several: {versions}")
    return zipfile.ZipFile(found[0])


def _is_of(file: Path, name: str, version: str | None) -> bool:
    """By the parts of a wheel's file name (PEP 427); names compare as PEP 503 normalises them."""
    distribution, its_version = file.name.split("-")[:2]
    return _normal(distribution) == _normal(name) and version in (None, its_version)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
