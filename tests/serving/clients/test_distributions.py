"""The clients are distributions of their own: light, and no part of the server's wheel."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
CLIENTS = ROOT / "serving" / "clients"


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def test_the_servers_wheel_has_no_client_in_it() -> None:
    """Only folders that are packages all the way up are found; the clients' are not."""
    find = project(ROOT)["tool"]["setuptools"]["packages"]["find"]
    assert find["namespaces"] is False
    assert not any(pattern.startswith("tendril_") for pattern in find["include"])
    for folder in (CLIENTS, CLIENTS / "python", CLIENTS / "editor"):
        assert not (folder / "__init__.py").exists()


@pytest.mark.parametrize(
    ("folder", "needs"),
    [
        ("python", {"httpx2", "openai", "tenacity"}),
        ("editor", {"lsprotocol", "pygls", "tendril-client"}),
    ],
)
def test_a_client_needs_little_and_names_each_of_its_packages(folder: str, needs: set[str]) -> None:
    found = project(CLIENTS / folder)
    names = {Requirement(text).name for text in found["project"]["dependencies"]}
    assert names == needs
    for package in found["tool"]["setuptools"]["packages"]:
        assert (CLIENTS / folder / package / "__init__.py").is_file()


def test_the_clients_import_nothing_of_the_server() -> None:
    ours = ("tendril", "serving", "signals", "learner", "shipper", "kernels", "torch")
    imports = [
        (file.name, line)
        for file in CLIENTS.rglob("tendril_*/*.py")
        for line in file.read_text().splitlines()
        if line.startswith(("from ", "import ")) and line.split()[1].split(".")[0] in ours
    ]
    assert imports == []
