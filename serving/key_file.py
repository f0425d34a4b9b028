"""The file of named keys: hashes and what each key allows, in TOML, for its owner's eyes only.

A key is 192 random bits, so nobody finds one from its hash by trying: plain BLAKE2b serves, where
a password, which people choose, would need a slow salted hash.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import tomli_w

from tendril.files import WorkspaceUnwritable, make_folder, whole_file
from tendril.records import Lane
from tendril.settings import InvalidSettings

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
Quota = Annotated[int, msgspec.Meta(ge=1)]


class KeyRefused(ValueError):
    """A key that cannot be made or revoked, and why."""


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key, without the key."""

    name: Name
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    tenant: Name
    role: Literal["application", "operator"] = "application"
    lanes: tuple[Lane, ...] = ("online",)
    requests_per_minute: Quota | None = None
    tokens_per_minute: Quota | None = None
    created_at: float = 0.0
    """Unix seconds."""


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: tuple[KeyEntry, ...] = ()


def new_key(prefix: str) -> str:
    """`prefix` and 192 random bits."""
    return prefix + secrets.token_urlsafe(24)


def key_digest(key: str) -> str:
    """What is kept of a key: BLAKE2b, 256 bits, hex."""
    return hashlib.blake2b(key.encode(errors="replace"), digest_size=32).hexdigest()


def read_keys(path: Path) -> tuple[KeyEntry, ...]:
    """All entries; none where there is no file. Raises `InvalidSettings`, never naming a value."""
    try:
        document = tomllib.loads(path.read_text())
        entries = msgspec.convert(document, _KeyFile).key
    except FileNotFoundError:
        return ()
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not TOML"
        raise InvalidSettings(f"{path}: expected a file of keys, got: {reason}") from None
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"{path}: expected keys, got: {error}") from None
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise InvalidSettings(f"{path}: expected each name once, got {max(names, key=names.count)}")
    return entries


def create_key(path: Path, entry: KeyEntry) -> str:
    """Add `entry`, whose digest is replaced by that of a new key; returns the key, this once.

    Raises `KeyRefused` for a name that is taken or malformed.
    """
    key = new_key("to-" if entry.role == "operator" else "tk-")
    fields = msgspec.to_builtins(entry) | {"digest": key_digest(key), "created_at": time.time()}
    for what, name in (("name", entry.name), ("tenant", entry.tenant)):
        if not re.fullmatch(NAME_PATTERN, name):
            raise KeyRefused(
                f"{what}: expected a letter or a digit, then letters, digits, '.', '_' and '-', "
                f"64 characters at most, got {name!r:.80}"
            )
    complete = msgspec.convert(fields, KeyEntry)
    with _locked(path):
        entries = read_keys(path)
        if any(known.name == complete.name for known in entries):
            raise KeyRefused(
                f"{complete.name}: there is such a key; revoke it, or use another name"
            )
        _write(path, (*entries, complete))
    return key


def revoke_key(path: Path, name: str) -> None:
    """Remove an entry. Raises `KeyRefused` where there is none of that name."""
    with _locked(path):
        entries = read_keys(path)
        left = tuple(entry for entry in entries if entry.name != name)
        if len(left) == len(entries):
            known = ", ".join(entry.name for entry in entries) or "none"
            raise KeyRefused(f"{name}: expected a key among: {known}")
        _write(path, left)


def _write(path: Path, entries: tuple[KeyEntry, ...]) -> None:
    rows = [{k: v for k, v in msgspec.to_builtins(e).items() if v is not None} for e in entries]
    with whole_file(path) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(tomli_w.dumps({"key": rows}).encode())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two operators at once: the second waits, so that neither's change is lost."""
    try:
        make_folder(path.parent)
        descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise WorkspaceUnwritable(path, error) from error
    with os.fdopen(descriptor, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
