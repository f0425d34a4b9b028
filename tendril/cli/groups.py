"""The commands that have commands of their own: only their command lines are parsed here."""

from datetime import datetime
from typing import Annotated

import typer

from tendril.cli.choices import JsonFlag, State

keys = typer.Typer(help="Make, list and revoke the keys that applications and operators hold.")


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Of the key: letters, digits, '.', '_', '-'.")],
    tenant: Annotated[str | None, typer.Option(help="Whose it is; default: its name.")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="For an operator.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Also the offline lane.")] = False,
    rpm: Annotated[int | None, typer.Option(min=1, help="Requests a minute.")] = None,
    tpm: Annotated[int | None, typer.Option(min=1, help="Tokens a minute.")] = None,
) -> None:
    """Make a key and print it, this once: only its hash is kept."""
    from tendril.cli.keys import create

    create(State.config, name, tenant=tenant, operator=operator, offline=offline, rpm=rpm, tpm=tpm)


@keys.command("list")
def list_keys(as_json: JsonFlag = False) -> None:
    """List keys by name, never by value."""
    from tendril.cli.keys import print_keys

    print_keys(State.config, as_json=as_json)


@keys.command("revoke")
def revoke_key(name: Annotated[str, typer.Argument(help="As `tendril keys list` says.")]) -> None:
    """End a key; gateways and nodes see it within a second."""
    from tendril.cli.keys import revoke

    revoke(State.config, name)


quarantine = typer.Typer(help="What is kept out of training, by a detector or by hand.")
When = Annotated[datetime | None, typer.Option(help="Local time, as in 2026-12-01T09:30:00.")]


@quarantine.command("list")
def list_quarantines(
    every: Annotated[bool, typer.Option("--all", help="Released ones too.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the quarantines in force, with what was measured and who placed them."""
    from tendril.cli.quarantine import print_quarantines

    print_quarantines(State.config, every=every, as_json=as_json)


@quarantine.command("place")
def place_quarantine(
    scope: Annotated[str, typer.Argument(help="user, tenant, trace, policy or grader.")],
    name: Annotated[str, typer.Argument(help="TENANT/USER_KEY, a tenant, an id, a version, ...")],
    reason: Annotated[str, typer.Option(help="For people; goes into the record.")],
    since: When = None,
    until: When = None,
) -> None:
    """Keep rows out of training by hand: those served from `since` to `until`, by default all."""
    from tendril.cli.quarantine import place

    place(
        State.config, scope, name, reason=reason,
        since=since.timestamp() if since else 0.0, until=until.timestamp() if until else None,
    )  # fmt: skip


@quarantine.command("release")
def release_quarantine(
    name: Annotated[str, typer.Argument(help="The first characters of its id.")],
    reason: Annotated[str, typer.Option(help="For people; goes into the record.")],
) -> None:
    """Let the rows back into training."""
    from tendril.cli.quarantine import release

    release(State.config, name, reason=reason)
