"""The TypeScript client: its own tests, and the official npm client against a serving process.

Sources are copied to `build/`, where the packages of its lock file are installed once.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.serving.clients.target import Target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[3]
CLIENTS = ROOT / "serving" / "clients"
COMPLETION_FLOWS = (
    "completion", "completion_stream", "completion_logprobs", "completion_errors", "timeout",
    "abort", "models", "suggestion",
)  # fmt: skip
CHAT_FLOWS = (
    "chat", "chat_stream", "chat_stream_helper", "chat_logprobs", "chat_choices", "chat_tools",
    "chat_errors",
)  # fmt: skip
UNREACHABLE = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH|ENOTCACHED")


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, text=True, capture_output=True,
        check=False, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def package() -> Path:
    return compiled(CLIENTS / "typescript")


def compiled(source: Path) -> Path:
    """A copy of the package with what its lock file names, compiled."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not on PATH")
    pinned = b"".join(
        (source / name).read_bytes() for name in ("package.json", "package-lock.json")
    )
    digest = hashlib.sha256(pinned).hexdigest()[:16]
    folder = ROOT / "build" / "clients" / f"{source.name}-{digest}"
    for name in ("src", "test", "build"):
        shutil.rmtree(folder / name, ignore_errors=True)
    ignored = shutil.ignore_patterns("node_modules", "build")
    shutil.copytree(source, folder, ignore=ignored, dirs_exist_ok=True)
    if not (folder / ".installed").exists():
        installed = run(folder, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        if installed.returncode != 0 and UNREACHABLE.search(installed.stderr):
            pytest.skip("no npm registry is reachable")
        assert installed.returncode == 0, installed.stderr
        (folder / ".installed").touch()
    built = run(folder, "npm", "run", "build")
    assert built.returncode == 0, built.stdout
    return folder


def test_the_extension_of_the_editor_example_compiles() -> None:
    folder = compiled(CLIENTS / "editor" / "vscode")
    main = json.loads((folder / "package.json").read_text())["main"]
    assert (folder / main).is_file()


def test_its_own_tests_pass(package: Path) -> None:
    cases = Path(__file__).parent / "retention_cases.json"
    tested = run(package, "npm", "test", RETENTION_CASES=str(cases))
    assert tested.returncode == 0, tested.stdout
    assert "# pass 0" not in tested.stdout


@pytest.mark.parametrize("wrapped", ["", "1"], ids=["plain", "wrapped"])
def test_the_npm_client_runs_its_normal_flows(package: Path, target: Target, wrapped: str) -> None:
    assert_flows(package, target, COMPLETION_FLOWS, wrapped)


@pytest.mark.parametrize("wrapped", ["", "1"], ids=["plain", "wrapped"])
def test_the_npm_client_chats(package: Path, chat_target: Target, wrapped: str) -> None:
    assert_flows(package, chat_target, CHAT_FLOWS, wrapped)


def assert_flows(package: Path, target: Target, flows: Sequence[str], wrapped: str) -> None:
    """Run `flows` of the package's test/flows.ts against `target`; each says that it is ok."""
    ran = run(
        package, "node", "build/test/flows.js",
        BASE_URL=target.base_url, API_KEY=target.api_key, MODEL=target.model,
        FLOWS=",".join(flows), WRAPPED=wrapped,
    )  # fmt: skip
    assert ran.stdout.splitlines() == [f"{flow}: ok" for flow in flows], ran.stdout + ran.stderr
