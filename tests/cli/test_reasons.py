"""What operators and processes say is text, whatever it looks like."""

from pathlib import Path

import pytest

from tendril.cli.releases import print_history
from tendril.cli.status import print_status
from tendril.log import SqliteLog
from tests.builders import make_release

REASON = "too eager [/users] :smile: [red]"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "tendril.toml"
    path.write_text(f'workspace = "{tmp_path / "work"}"\n')
    log = SqliteLog(tmp_path / "work" / "log.db")
    log.append([("r", make_release(reason=REASON))])
    log.close()
    return path


def test_history_prints_a_reason_as_it_was_given(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_history(config, as_json=False)
    assert REASON in capsys.readouterr().out


def test_status_prints_a_reason_as_it_was_given(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_status(config, as_json=False)
    assert REASON in capsys.readouterr().out
