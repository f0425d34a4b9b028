"""The node's secret and its application keys, kept in the workspace, readable by its owner only."""

import hmac
import os
import secrets
from pathlib import Path


def load_or_create(path: Path, make: str) -> str:
    """The file's content; made once, with `make` as its content, where it does not exist.

    Two processes that start together agree: the first to create the file wins.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(make)
    try:
        os.link(scratch, path)  # fails where it exists: never half a file, never two contents
    except FileExistsError:
        pass
    finally:
        scratch.unlink()
    return path.read_text().strip()


def node_secret(workspace: Path) -> bytes:
    """Signs feedback tokens and keys the hashes of user ids."""
    return bytes.fromhex(load_or_create(workspace / "node.secret", secrets.token_hex(32)))


def application_keys(workspace: Path, configured: tuple[str, ...]) -> tuple[str, ...]:
    """The configured keys, else the one in `<workspace>/api_key`, made on the first start."""
    if configured:
        return configured
    return (load_or_create(workspace / "api_key", f"tk-{secrets.token_urlsafe(24)}"),)


def is_known(key: str, keys: tuple[str, ...]) -> bool:
    """Whether `key` is one of `keys`, compared in constant time."""
    return any([hmac.compare_digest(key.encode(), known.encode()) for known in keys])
