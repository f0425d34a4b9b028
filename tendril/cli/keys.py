"""`tendril keys`: make, list and revoke the keys of applications and operators."""

import sys
from datetime import datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Column, Table

from serving.key_file import KeyEntry, KeyRefused, create_key, read_keys, revoke_key
from serving.keys import DEVELOPMENT, unnamed_keys
from tendril.settings import Settings, load_settings

RESERVED = (DEVELOPMENT, "configured")


def create(
    config: Path | None,
    name: str,
    *,
    tenant: str | None,
    operator: bool,
    offline: bool,
    rpm: int | None,
    tpm: int | None,
) -> None:
    """The key goes to stdout alone, so that a script can keep it; the rest goes to stderr."""
    if name in RESERVED:
        raise KeyRefused(f"{name}: this name is kept for keys that the settings name")
    entry = KeyEntry(
        name=name,
        digest="",
        tenant=tenant or name,
        role="operator" if operator else "application",
        lanes=("online", "offline") if offline else ("online",),
        requests_per_minute=rpm,
        tokens_per_minute=tpm,
    )
    path = _key_file(load_settings(config))
    print(create_key(path, entry))
    print(f"only its hash is kept, in {path}: this is the one time you see it", file=sys.stderr)


def print_keys(config: Path | None, *, as_json: bool) -> None:
    """As a table, or as JSON without the hashes; those of the settings come last."""
    settings = load_settings(config)
    unnamed = [
        KeyEntry(name=key.name, digest="", tenant=key.tenant) for key in unnamed_keys(settings)
    ]
    entries = (*read_keys(_key_file(settings)), *unnamed)
    if as_json:
        rows = [msgspec.to_builtins(entry) for entry in entries]
        shown = [{k: v for k, v in row.items() if k != "digest"} for row in rows]
        print(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return
    exact = (Column(name, no_wrap=True) for name in ("name", "tenant"))  # to be copied
    table = Table(*exact, "role", "lanes", "requests/min", "tokens/min", "made", box=None)
    for e in entries:
        quotas = [str(quota or "-") for quota in (e.requests_per_minute, e.tokens_per_minute)]
        table.add_row(e.name, e.tenant, e.role, " ".join(e.lanes), *quotas, _made(e.created_at))
    Console(markup=False, emoji=False).print(table)


def _made(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M") if at else "-"


def revoke(config: Path | None, name: str) -> None:
    """Gateways and nodes look at the files twice a second."""
    settings = load_settings(config)
    if name == DEVELOPMENT:
        _end_development_key(settings.workspace / "api_key")
    else:
        revoke_key(_key_file(settings), name)
    print(f"{name}: revoked; gateways and nodes refuse it within a second")


def _end_development_key(path: Path) -> None:
    try:
        path.unlink()
    except FileNotFoundError:
        raise KeyRefused(f"{DEVELOPMENT}: expected a key in {path}, found none") from None


def _key_file(settings: Settings) -> Path:
    return settings.path(settings.access.key_file)
