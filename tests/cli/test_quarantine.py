"""`tendril quarantine`: placed, listed, released, and what names nothing refused in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tendril.cli.__main__ import app, main


@pytest.fixture(autouse=True)
def _workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENDRIL_WORKSPACE", str(tmp_path / "w"))


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["quarantine", *arguments])


def _listed(*arguments: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(_run("list", "--json", *arguments).stdout)
    return found


def test_a_quarantine_is_placed_listed_and_released() -> None:
    placed = _run(
        "place", "user", "acme/eve", "--reason", "a bot", "--since", "2026-11-30T10:00:00"
    )
    assert placed.exit_code == 0
    [record] = _listed()
    assert (record["scope"], record["scope_id"], record["state"]) == ("user", "acme/eve", "placed")
    assert (record["detector"], record["reason"]) == ("manual", "a bot")
    assert _run("release", record["quarantine_id"][:6], "--reason", "a test").exit_code == 0
    assert _listed() == []
    [record] = _listed("--all")
    assert (record["state"], record["reason"]) == ("released", "a test")
    assert "acme/eve" in _run("list", "--all").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["place", "planet", "mars"], "expected one of user, tenant"),
        (["place", "user", "eve"], "expected TENANT/USER_KEY"),
        (["place", "policy", "newest"], "expected a version's number"),
        (["release", "abc"], "expected one open quarantine, got 0"),
    ],
)
def test_what_names_nothing_is_refused_in_one_line(
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["tendril", "quarantine", *arguments, "--reason", "r"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert words in capsys.readouterr().err
