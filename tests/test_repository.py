"""What holds for every file of the repository."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "tendril", "serving", "signals", "learner", "offline_rl", "shipper", "kernels", "dashboards",
    "benchmarks",
)  # fmt: skip
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
SOURCES = sorted(file for name in (*PACKAGES, "tests") for file in (ROOT / name).rglob("*.py"))


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every module of ours, parsed."""
    return {relative(file): ast.parse(file.read_text()) for file in SOURCES}


def relative(file: Path) -> str:
    return str(file.relative_to(ROOT))


def repository_files() -> list[Path]:
    """Every file that is or would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("not a git checkout: cannot tell which files belong to it")
    return [file for name in listed.stdout.split("\0") if (file := ROOT / name).is_file()]


def test_no_file_of_a_package_is_too_long_to_read() -> None:
    lengths = {
        relative(file): len(file.read_text().splitlines())
        for file in SOURCES
        if file.relative_to(ROOT).parts[0] in PACKAGES
    }
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_every_function_fits_on_a_screen(trees: dict[str, ast.Module]) -> None:
    too_long = {
        f"{name}:{node.lineno} {node.name}": lines
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert too_long == {}


def test_every_module_says_what_it_is_in_its_first_line(trees: dict[str, ast.Module]) -> None:
    silent = [name for name, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    assert silent == []


def test_kernels_has_an_empty_init() -> None:
    """transformers imports any top-level module of that name and reads what it finds there."""
    assert (ROOT / "kernels" / "__init__.py").read_bytes() == b""


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    private = re.compile(r"/(?:home|root|work|Users)/\w")
    found = []
    for file in repository_files():
        if file.name == "tokenizer.json":  # learned from text, where such a piece may occur
            continue
        text = file.read_bytes()
        if b"\0" not in text and private.search(text.decode(errors="replace")):
            found.append(relative(file))
    assert found == []


def test_the_readme_shows_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme


def test_the_licence_is_there_in_full() -> None:
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()


def test_the_script_of_ci_is_executable_and_runs_what_people_run() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "make test" in script.read_text()
