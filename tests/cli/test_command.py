"""The command as a person types it: answers on stdout, reasons in one line on stderr, statuses."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

PROJECT = Path(__file__).parents[2]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("TENDRIL_")}


def _environment(variables: dict[str, str]) -> dict[str, str]:
    return {**CLEAN, "PYTHONPATH": str(PROJECT), "NO_COLOR": "1", "COLUMNS": "200", **variables}


def _tendril(
    folder: Path, *arguments: str, script: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    code = ["-c", script] if script else ["-m", "tendril.cli"]
    return subprocess.run(
        [sys.executable, *code, *arguments], cwd=folder, env=_environment(variables),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


LIGHT_HELP = """
import sys
from tendril.cli.__main__ import app
try:
    app(["--help"])
except SystemExit as end:
    assert end.code == 0
heavy = {"torch", "transformers", "numpy", "httpx", "serving", "learner", "shipper", "pydantic"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_help_imports_nothing_heavy_and_names_every_command(tmp_path: Path) -> None:
    ended = _tendril(tmp_path, script=LIGHT_HELP)
    assert (ended.returncode, ended.stderr) == (0, "")
    for command in ("demo", "up", "down", "serve", "signals", "learn", "agent", "ship",
                    "rollback", "status", "history", "config", "doctor"):  # fmt: skip
        assert command in ended.stdout


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["ship"], ["ship", "2", "--watch"], ["ship", "two"], ["config", "--yaml"],
     ["--config", "missing.toml", "config"]],
)  # fmt: skip
def test_misuse_is_status_2(tmp_path: Path, arguments: list[str]) -> None:
    ended = _tendril(tmp_path, *arguments)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[serving]\nprot = 1", "tendril.toml: unknown setting serving.prot; "
         "did you mean serving.port?"),
        ("[gateway]\nadmin_port = 1", "did you mean serving.admin_port?"),
        ("[lerner]\nseed = 1", "tendril.toml: unknown setting lerner; did you mean learner?"),
        ("[serving]\nzzzzzz = 1", "tendril.toml: unknown setting serving.zzzzzz\n"),
        ('[serving]\nport = "http"', "tendril.toml: serving.port: expected a valid integer, "),
        ("port = = 1", "tendril.toml: expected TOML"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_line_with_the_key(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "tendril.toml").write_text(text)
    ended = _tendril(tmp_path, "config")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_wrong_variable_is_named_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "tendril.toml").write_text("[gateway]\nport = 1\n")
    ended = _tendril(tmp_path, "config", Tendril_gateway__prot="9")
    assert ended.returncode == 1
    assert "Tendril_gateway__prot: unknown setting gateway.prot; did you mean gateway.port?" in (
        ended.stderr
    )


def test_a_wrong_secret_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "tendril.toml").write_text('[serving]\napi_keys = "sk-secret"')
    ended = _tendril(tmp_path, "config")
    assert ended.returncode == 1
    assert "serving.api_keys" in ended.stderr
    assert "sk-secret" not in ended.stderr


def test_config_says_where_each_value_comes_from(tmp_path: Path) -> None:
    file = '[serving]\nadmin_port = 5\napi_keys = ["sk-secret"]\n[learner]\ngrad_clip = 2.0\n'
    (tmp_path / "tendril.toml").write_text(file)
    variables = {"TENDRIL_LEARNER__GRAD_CLIP": "3", "tendril_console__port": "7"}
    ended = _tendril(tmp_path, "config", "--json", **variables)
    rows: dict[str, Any] = json.loads(ended.stdout)
    assert rows["serving.admin_port"] == {"value": 5, "origin": "tendril.toml"}
    assert rows["serving.port"] == {"value": 8002, "origin": "default"}
    assert rows["learner.grad_clip"] == {
        "value": 3.0, "origin": "environment TENDRIL_LEARNER__GRAD_CLIP",
    }  # fmt: skip
    assert rows["console.port"]["origin"] == "environment TENDRIL_CONSOLE__PORT"
    assert rows["serving.api_keys"] == {"value": "(hidden)", "origin": "tendril.toml"}
    table = _tendril(tmp_path, "config", **variables)
    assert "sk-secret" not in ended.stdout + table.stdout
    assert table.returncode == 0


def test_history_of_an_empty_workspace_is_empty(tmp_path: Path) -> None:
    ended = _tendril(tmp_path, "history", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == []


@pytest.mark.parametrize("command", [["rollback"], ["ship", "7"]])
def test_what_cannot_be_released_is_refused_in_one_line(tmp_path: Path, command: list[str]) -> None:
    ended = _tendril(tmp_path, *command)
    assert ended.returncode == 1
    assert ended.stderr.startswith("tendril: ")
    assert ended.stderr.count("\n") == 1


def test_doctor_reports_each_check_as_json(tmp_path: Path) -> None:
    ended = _tendril(
        tmp_path, "doctor", "--json",
        **_free_ports(), TENDRIL_SERVING__CHECKPOINT=str(tmp_path / "nowhere"),
    )  # fmt: skip
    findings = {finding["check"]: finding for finding in json.loads(ended.stdout)}
    assert ended.returncode == 1  # there is no checkpoint
    assert findings["workspace"]["ok"]
    assert findings["ports"]["ok"]
    assert not findings["checkpoint"]["ok"]
    assert "missing config.json" in findings["checkpoint"]["found"]
    assert "Set serving.checkpoint" in findings["checkpoint"]["cure"]


@pytest.mark.parametrize("command", ["up", "signals", "rollback"])
def test_a_workspace_that_cannot_be_written_is_one_line_with_path_and_cure(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "taken").write_bytes(b"")
    ended = _tendril(tmp_path, command, TENDRIL_WORKSPACE=str(tmp_path / "taken" / "w"))
    assert ended.returncode == 1
    assert str(tmp_path / "taken") in ended.stderr
    assert "choose another folder with TENDRIL_WORKSPACE" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "history", "down"])
def test_looking_makes_no_file(tmp_path: Path, command: str) -> None:
    assert _tendril(tmp_path, command).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_down_without_a_supervisor_is_done(tmp_path: Path) -> None:
    ended = _tendril(tmp_path, "down")
    assert (ended.returncode, ended.stdout) == (0, "nothing runs in .tendril\n")


def test_up_starts_nothing_where_it_could_not_serve(tmp_path: Path) -> None:
    variables = _free_ports() | {"TENDRIL_SERVING__CHECKPOINT": "/path/to/a/folder"}
    with socket.create_server(("127.0.0.1", int(variables["TENDRIL_GATEWAY__PORT"]))):
        ended = _tendril(tmp_path, "up", **variables)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert "checkpoint: /path/to/a/folder: missing config.json" in ended.stderr
    assert "or set gateway.port to another" in ended.stderr
    assert not (tmp_path / ".tendril/logs").exists()


def _free_ports() -> dict[str, str]:
    """Of this moment: all held open until each is known."""
    names = ("GATEWAY__PORT", "SERVING__PORT", "SERVING__ADMIN_PORT", "CONSOLE__PORT")
    with ExitStack() as held:
        servers = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        ports = [str(server.getsockname()[1]) for server in servers]
    return {f"TENDRIL_{name}": port for name, port in zip(names, ports, strict=True)}


def _follow_readme(folder: Path, port: str) -> None:
    """Its blocks for curl and for the OpenAI client, on this workspace and this port."""
    text = (PROJECT / "README.md").read_text().replace("8000", port).replace(".tendril/", "w/")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [shell] = [block for _, block in blocks if "report 1" in block]
    [python] = [block for language, block in blocks if language == "python"]
    for command in (["bash", "-c", shell], [sys.executable, "-c", python]):
        ended = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=30
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        if command[0] == "bash":
            assert ended.stdout.count('"status":"accepted"') == 2
        else:
            assert "/v1/feedback?token=" in ended.stdout


@pytest.mark.slow
def test_up_runs_until_down_and_refuses_a_second_one(tmp_path: Path) -> None:
    variables = _free_ports() | {"TENDRIL_WORKSPACE": str(tmp_path / "w")}
    command = [sys.executable, "-m", "tendril.cli", "up"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=_environment(variables), stdout=subprocess.PIPE, text=True
    ) as up:
        assert up.stdout is not None
        assert up.stdout.readline().startswith("starting 7 processes")
        children = json.loads((tmp_path / "w/processes.json").read_bytes())["children"]
        assert [child["name"] for child in children] == [
            "serve", "gateway", "signals", "learn", "ship", "agent", "console",
        ]  # fmt: skip
        second = _tendril(tmp_path, "up", **variables)
        assert second.returncode == 1
        assert f"found process {up.pid}; stop it with `tendril down`" in second.stderr
        ready = up.stdout.readline()
        assert ready.startswith("ready after")
        api = f"http://127.0.0.1:{variables['TENDRIL_GATEWAY__PORT']}/v1"
        assert f"{api}, key in {tmp_path / 'w/api_key'}" in ready
        key = (tmp_path / "w/api_key").read_text()
        models = httpx.get(f"{api}/models", headers={"authorization": f"Bearer {key}"})
        assert models.json()["data"][0]["id"] == "tendril"
        _follow_readme(tmp_path, variables["TENDRIL_GATEWAY__PORT"])
        down = _tendril(tmp_path, "down", **variables)
        assert (down.returncode, down.stderr) == (0, "")
        assert up.wait(30) in (0, -signal.SIGTERM)
    children = json.loads((tmp_path / "w/processes.json").read_bytes())["children"]
    assert all(child["pid"] is None for child in children)
