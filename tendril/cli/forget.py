"""`tendril forget`: delete what is known of one user, and say what was there and what is left."""

import re
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from signals.privacy.forget import Certificate, forget
from signals.privacy.owner import Owner
from tendril.ids import tenant_user_key
from tendril.log import open_log
from tendril.settings import InvalidSettings, Settings, load_settings

USER_KEY = re.compile(r"[0-9a-f]{32}")


def run_forget(
    config: Path | None, tenant: str, user: str | None, user_key: str | None, *, as_json: bool
) -> int:
    """Exit status: 0 where nothing is left, 1 where something is or nothing was known.

    The raw id is never printed.
    """
    settings = load_settings(config)
    owner = Owner(tenant, user_key or _hashed(settings, tenant, user))
    if not USER_KEY.fullmatch(owner.user_key):
        raise InvalidSettings("--user-key: expected 32 hexadecimal digits")
    console = Console(stderr=True, markup=False, emoji=False)
    log = open_log(settings)
    try:
        with console.status("forgetting") as status:
            certificate = forget(settings, log, owner, step=status.update)
    finally:
        log.close()
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(certificate)) + b"\n")
    elif certificate.is_known:
        _print(certificate)
    if not certificate.is_known:
        print(
            f"nothing is known of this user under tenant {tenant}; `tendril keys list` names the "
            "tenants",
            file=sys.stderr,
        )
    return 0 if certificate.is_complete and certificate.is_known else 1


def _hashed(settings: Settings, tenant: str, user: str | None) -> str:
    """As serving does it. A secret is not made here: a new one would match nobody."""
    path = settings.workspace / "node.secret"
    try:
        secret = bytes.fromhex(path.read_text().strip())
    except FileNotFoundError:
        raise InvalidSettings(
            f"{path}: expected the secret that user ids are hashed with, found none; run this "
            "where serving runs, or name the user by --user-key"
        ) from None
    return tenant_user_key(tenant, user, secret)


def _print(certificate: Certificate) -> None:
    console = Console(markup=False, emoji=False)
    table = Table("where", "rows before", "rows after", "note", box=None)
    for place in certificate.places:
        table.add_row(place.where, str(place.before), str(place.after), place.note)
    console.print(table)
    if versions := ", ".join(map(str, certificate.policy_versions)):
        console.print(f"policy versions trained on rows of theirs: {versions}")
    for note in certificate.notes:
        console.print(note)
    done = "nothing is left" if certificate.is_complete else "something is left: see above"
    console.print(f"person {certificate.person}: {done}")
