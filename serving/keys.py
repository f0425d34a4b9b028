"""The node's secret and its application keys, kept in the workspace, readable by its owner only."""

import contextlib
import hmac
import os
import secrets
from pathlib import Path

from tendril.files import WorkspaceUnwritable


def load_or_create(path: Path, make: str) -> str:
    """The file's content; made once, with `make` as its content, where it does not exist.

    Two processes that start together agree: the first to create the file wins.
    Raises `WorkspaceUnwritable`, or `ValueError` for a file that is there and empty.
    """
    try:
        if not path.exists():
            _create(path, make)
        content = path.read_text().strip()
    except OSError as error:
        raise WorkspaceUnwritable(path, error) from error
    if not content:
        raise ValueError(f"{path}: expected a secret, got an empty file; delete it for a new one")
    return content


def _create(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)  # fails where it exists: never half a file, never two contents
    finally:
        scratch.unlink(missing_ok=True)


def node_secret(workspace: Path) -> bytes:
    """Signs feedback tokens and keys the hashes of user ids."""
    return bytes.fromhex(load_or_create(workspace / "node.secret", secrets.token_hex(32)))


def application_keys(workspace: Path, configured: tuple[str, ...]) -> tuple[str, ...]:
    """The configured keys, else the one in `<workspace>/api_key`, made on the first start."""
    if configured:
        return configured
    return (load_or_create(workspace / "api_key", f"tk-{secrets.token_urlsafe(24)}"),)


def is_known(key: str, keys: tuple[str, ...]) -> bool:
    """Whether `key` is one of `keys`, compared in constant time; an empty key never is."""
    matches = [hmac.compare_digest(key.encode(), known.encode()) for known in keys]
    return bool(key) and any(matches)
