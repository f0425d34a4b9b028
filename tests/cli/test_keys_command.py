"""`tendril keys`: a key is shown once, then only its name."""

import json
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


@pytest.mark.parametrize("settings_name_it", [False, True])
def test_a_key_without_an_entry_is_listed_with_the_tenant_that_its_traces_have(
    config: Path, capsys: pytest.CaptureFixture[str], settings_name_it: bool
) -> None:
    if settings_name_it:
        config.write_text(config.read_text() + '[serving]\napi_keys = ["tk-secret"]\n')
    settings = load_settings(config)
    ring = key_ring(settings)
    key = "tk-secret" if settings_name_it else (settings.workspace / "api_key").read_text()
    known = ring.authenticate(f"Bearer {key}")
    assert known is not None
    print_keys(config, as_json=True)
    [row] = json.loads(capsys.readouterr().out)
    name = "configured" if settings_name_it else "development"
    assert (row["name"], row["tenant"], row["role"]) == (name, known.tenant, "application")
    print_keys(config, as_json=False)
    listed = capsys.readouterr().out
    assert known.tenant in listed
    assert key not in listed


def test_a_name_that_means_something_else_is_refused(config: Path) -> None:
    with pytest.raises(KeyRefused, match="development"):
        _create(config, "development")


@pytest.mark.parametrize("name", ["bad name", "", "-x", "é", "a" * 65])
def test_a_malformed_name_is_refused_in_plain_words(config: Path, name: str) -> None:
    with pytest.raises(KeyRefused, match="name: expected a letter or a digit, then") as told:
        _create(config, name)
    assert not {"regex", "^", "$"} & set(str(told.value).split())
    assert repr(name)[:60] in str(told.value)
