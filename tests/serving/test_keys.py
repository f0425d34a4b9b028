"""Secrets and keys: private, made once, kept hashed, revoked without a restart, never shown."""

import hashlib
import logging
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.key_file import KeyEntry, KeyRefused, create_key, key_digest, read_keys, revoke_key
from serving.keys import (
    RELOAD_CHECK_S,
    KeyRing,
    internal_token,
    is_internal,
    key_ring,
    load_or_create,
    node_secret,
)
from tendril.settings import InvalidSettings, ServingSettings, Settings


def make_entry(**overrides: Any) -> KeyEntry:
    fields: dict[str, Any] = {"name": "web", "digest": "", "tenant": "acme"}
    return KeyEntry(**(fields | overrides))


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def later(self) -> None:
        self.now_s += 2 * RELOAD_CHECK_S


def test_secrets_are_private_and_made_once_by_whoever_is_first(tmp_path: Path) -> None:
    path = tmp_path / "api_key"
    code = (
        "import sys; from pathlib import Path; from serving.keys import load_or_create;"
        "print(load_or_create(Path(sys.argv[1]), sys.argv[2]))"
    )
    makers = [
        subprocess.Popen([sys.executable, "-c", code, path, f"k{i}"], stdout=subprocess.PIPE)
        for i in range(4)
    ]
    outputs = {maker.communicate()[0] for maker in makers}
    assert len(outputs) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    path.write_text("")
    with pytest.raises(ValueError, match="empty file"):
        load_or_create(path, "k")


def test_a_key_is_kept_as_a_hash_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = create_key(path, make_entry(requests_per_minute=5))
    assert len(key) == len("tk-") + 32  # 192 bits in base64
    assert key not in path.read_text()
    assert hashlib.blake2b(key.encode(), digest_size=32).hexdigest() in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_key_brings_its_tenant_lanes_and_quotas(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = create_key(path, make_entry(lanes=("online", "offline"), tokens_per_minute=7))
    found = KeyRing(path).authenticate(f"Bearer {key}")
    assert found is not None
    assert (found.name, found.tenant, found.lanes) == ("web", "acme", ("online", "offline"))
    assert (found.requests_per_minute, found.tokens_per_minute) == (None, 7)


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "BEARER   {} ", "{}"])
def test_the_scheme_may_be_spelt_in_any_way(form: str) -> None:
    assert KeyRing(Path("none"), ("tk-a",)).authenticate(form.format("tk-a")) is not None


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer ", "Bearer tk-ab", "Basic tk-a", "tk-"])
def test_what_is_no_key_opens_nothing(shown: str) -> None:
    assert KeyRing(Path("none"), ("tk-a", "")).authenticate(shown) is None


@given(st.text())
def test_no_header_breaks_the_ring(header: str) -> None:
    assert KeyRing(Path("none"), ("tk-a-key-that-nobody-guesses",)).authenticate(header) is None


def test_a_configured_key_may_be_any_text_and_keeps_its_tenant() -> None:
    found = KeyRing(Path("none"), ("ключ",)).authenticate("Bearer ключ")
    assert found is not None
    assert found.tenant == hashlib.blake2b("ключ".encode(), digest_size=8).hexdigest()
    assert found.lanes == ("online",)


def test_an_operator_key_is_no_application_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    operator = create_key(path, make_entry(name="ops", role="operator"))
    application = create_key(path, make_entry())
    ring = KeyRing(path)
    assert ring.authenticate(f"Bearer {operator}") is None
    assert ring.authenticate_operator(f"Bearer {operator}") == "ops"
    assert ring.authenticate_operator(f"Bearer {application}") is None


def test_keys_come_and_go_without_a_restart(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.toml", Clock()
    ring = KeyRing(path, monotonic=clock)
    key = create_key(path, make_entry())
    clock.later()
    assert ring.authenticate(key) is not None
    revoke_key(path, "web")
    clock.later()
    assert ring.authenticate(key) is None


def test_a_damaged_file_keeps_the_keys_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "keys.toml", Clock()
    key = create_key(path, make_entry())
    ring = KeyRing(path, monotonic=clock)
    path.write_text("[[key]\n")
    clock.later()
    assert ring.authenticate(key) is not None
    assert "keys stay as they were" in caplog.text
    with pytest.raises(InvalidSettings, match=r"keys\.toml"):
        KeyRing(path)


def test_a_name_is_used_once_and_only_a_known_one_is_revoked(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    create_key(path, make_entry())
    with pytest.raises(KeyRefused, match="web"):
        create_key(path, make_entry())
    with pytest.raises(KeyRefused, match="letters"):
        create_key(path, make_entry(name="a key"))
    with pytest.raises(KeyRefused, match="web"):
        revoke_key(path, "other")
    assert [entry.name for entry in read_keys(path)] == ["web"]


def test_two_operators_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    with ThreadPoolExecutor(2) as operators:
        list(operators.map(lambda i: create_key(path, make_entry(name=f"k{i}")), range(20)))
    assert len(read_keys(path)) == 20


def test_the_first_start_makes_a_development_key_only_where_there_is_no_other(
    tmp_path: Path,
) -> None:
    fresh = Settings(workspace=tmp_path / "fresh", serving=ServingSettings(api_keys=()))
    ring = key_ring(fresh)
    key = (tmp_path / "fresh" / "api_key").read_text()
    assert ring.authenticate(f"Bearer {key}") is not None
    named = Settings(workspace=tmp_path / "named", serving=ServingSettings(api_keys=()))
    create_key(named.path(named.access.key_file), make_entry())
    key_ring(named)
    assert not (tmp_path / "named" / "api_key").exists()


def test_a_deleted_development_key_ends_without_a_restart(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "api_key"
    path.write_text("tk-development")
    ring = KeyRing(tmp_path / "keys.toml", development_key=path, monotonic=clock)
    assert ring.authenticate("Bearer tk-development") is not None
    path.unlink()
    clock.later()
    assert ring.authenticate("Bearer tk-development") is None


def test_no_key_shows_in_reprs_errors_or_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path, clock = tmp_path / "keys.toml", Clock()
    named, plain = create_key(path, make_entry()), "tk-plain-secret"
    ring = KeyRing(path, (plain,), monotonic=clock)
    shown = [repr(ring), repr(vars(ring)), repr(ring.authenticate(named)), path.read_text()]
    path.write_text(f'{path.read_text()}\n[[key]]\nname = "x"\ndigest = "{named}"\ntenant = "t"\n')
    clock.later()
    ring.authenticate(plain)
    try:
        KeyRing(path)
    except InvalidSettings as error:
        shown += ["".join(traceback.format_exception(error)), repr(error)]
    else:
        raise AssertionError("a digest that is none was taken")
    for text in (*shown, caplog.text):
        assert named not in text
        assert plain not in text
        assert key_digest(named) not in caplog.text


def test_only_who_knows_the_secret_speaks_as_a_gateway(tmp_path: Path) -> None:
    secret = node_secret(tmp_path)
    token = internal_token(secret)
    assert is_internal(token, secret)
    assert secret.hex() not in token
    for wrong in ("", token[:-1], token.upper(), internal_token(b"x" * 32), "é", "\udc80"):
        assert not is_internal(wrong, secret)
