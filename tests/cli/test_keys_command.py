"""`tendril keys`: a key is shown once, then only its name."""

from pathlib import Path

import pytest

from serving.key_file import KeyRefused
from serving.keys import key_ring
from tendril.cli.keys import create, print_keys, revoke
from tendril.settings import load_settings


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tendril.toml"
    path.write_text(f'workspace = "{tmp_path / "w"}"\n')
    return path


def _create(config: Path, name: str, *, operator: bool = False, offline: bool = False) -> None:
    create(config, name, tenant=None, operator=operator, offline=offline, rpm=9, tpm=None)


def test_a_key_is_printed_once_and_opens_what_it_was_made_for(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _create(config, "web", offline=True)
    key = capsys.readouterr().out.strip()
    found = key_ring(load_settings(config)).authenticate(f"Bearer {key}")
    assert found is not None
    assert (found.tenant, found.lanes) == ("web", ("online", "offline"))
    for as_json in (False, True):
        print_keys(config, as_json=as_json)
        listed = capsys.readouterr().out
        assert "web" in listed
        assert key not in listed
        assert "digest" not in listed


def test_a_revoked_key_is_gone_and_the_development_key_can_be_revoked_too(config: Path) -> None:
    settings = load_settings(config)
    key_ring(settings)
    development = settings.workspace / "api_key"
    assert development.exists()
    _create(config, "ops", operator=True)
    revoke(config, "ops")
    revoke(config, "development")
    key_ring(settings)
    assert not development.exists()  # the key file is there, and says: no keys
    for name in ("ops", "development"):
        with pytest.raises(KeyRefused, match=name):
            revoke(config, name)


def test_a_name_that_means_something_else_is_refused(config: Path) -> None:
    with pytest.raises(KeyRefused, match="development"):
        _create(config, "development")
