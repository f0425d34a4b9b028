"""The `tendril` command. Exit status 0: done; 1: refused or failed; 2: misuse.

Only the command line is parsed here; each command imports what it needs when it runs, so that
`--help` answers at once.
"""

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from tendril.cli.choices import Engines, JsonFlag, Logs, Reason, State
from tendril.cli.groups import keys, quarantine

app = typer.Typer(
    name="tendril",
    help="Serve a language model, learn from what its users do next, ship the better weights.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", envvar="TENDRIL_CONFIG", exists=True, dir_okay=False,
            help="Settings file; default: tendril.toml here, if there is one.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Choose the settings."""
    default = Path("tendril.toml")
    State.config = config or (default if default.exists() else None)


@app.command()
def demo(
    minutes: Annotated[
        float, typer.Option(min=0.2, help="Length of the whole run, evaluation included.")
    ] = 10.0,
    seed: Annotated[int, typer.Option(help="Of users, exploration and learner.")] = 1,
    headless: Annotated[bool, typer.Option("--headless", help="No live view.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write the report as JSON.")] = None,
    users: Annotated[
        int | None, typer.Option(min=1, help="People typing at once; default: what 2 cores serve.")
    ] = None,
    engine: Annotated[Engines, typer.Option(help="What samples.")] = Engines.torch,
    log: Annotated[Logs, typer.Option(help="kafka: on a broker from a package.")] = Logs.sqlite,
) -> None:
    """Run the whole loop here: simulated users, learning, gated deltas, hot swaps."""
    from tendril.cli.demo import run_demo

    sys.exit(
        run_demo(
            minutes=minutes,
            seed=seed,
            headless=headless,
            report=report,
            users=users,
            engine=engine.value,
            log=log.value,
        )
    )


@app.command()
def up() -> None:
    """Run one process of each kind from tendril.toml, until Ctrl-C or `tendril down`."""
    from tendril.cli.deployment import up as run_up

    run_up(State.config)


@app.command()
def down() -> None:
    """Stop what `tendril up` or `tendril demo` started in this workspace."""
    from tendril.cli.deployment import down as run_down

    run_down(State.config)


@app.command()
def serve() -> None:
    """Serve the model: OpenAI API, feedback, traces."""
    _run("serve")


@app.command()
def gateway() -> None:
    """Route requests to the serving replicas: keys, quotas, canary, retries."""
    _run("gateway")


@app.command()
def signals() -> None:
    """Join traces and feedback into episodes with rewards."""
    _run("signals")


@app.command()
def learn() -> None:
    """Train on episodes and publish candidates."""
    _run("learn")


@app.command()
def agent() -> None:
    """Keep this node's engine on the live version."""
    _run("agent")


@app.command()
def console() -> None:
    """Serve the console page."""
    _run("console")


@app.command()
def ship(
    version: Annotated[int | None, typer.Argument(help="Version to put into service.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Gate and ship each candidate as it is published.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also what the gate held.")] = False,
    reason: Reason = "by hand",
) -> None:
    """Put VERSION into service, or with --watch run the ship loop."""
    if watch == (version is not None):
        raise typer.BadParameter("expected either a VERSION or --watch")
    if version is None:
        _run("ship")
        return
    from tendril.cli.releases import ship as ship_version

    ship_version(State.config, version, force=force, reason=reason)


@app.command()
def rollback(
    version: Annotated[
        int | None, typer.Argument(help="Version to go back to; default: the one before.")
    ] = None,
    reason: Reason = "by hand",
) -> None:
    """Serve an earlier version again, within seconds and without a download."""
    from tendril.cli.releases import rollback as roll_back

    roll_back(State.config, version, reason=reason)


@app.command()
def status(as_json: JsonFlag = False) -> None:
    """Say what is live, how the loop is, and what runs here."""
    from tendril.cli.status import print_status

    print_status(State.config, as_json=as_json)


@app.command()
def history(as_json: JsonFlag = False) -> None:
    """List every event in the life of every version: who, when, why, on what evidence."""
    from tendril.cli.releases import print_history

    print_history(State.config, as_json=as_json)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="One SELECT, as 'select count(*) from episodes'.")],
    as_json: JsonFlag = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
) -> None:
    """Ask the lake in SQL: traces, feedback, episodes, episodes_latest, quarantine, ledger."""
    if as_json and as_csv:
        raise typer.BadParameter("expected --json or --csv, got both")
    from tendril.cli.query import print_query

    print_query(State.config, sql, form="json" if as_json else "csv" if as_csv else "table")


@app.command()
def replay(
    recipe: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="TOML; default: the present.")
    ] = None,
    since: Annotated[datetime | None, typer.Option(help="Traces logged from then on.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    write: Annotated[bool, typer.Option("--write", help="Append what changed.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Judge the past by another recipe and print what that changes."""
    from tendril.cli.replay import run_replay

    run_replay(State.config, recipe, since, workers=workers, write=write, as_json=as_json)


@app.command()
def forget(
    user: Annotated[str | None, typer.Argument(help="Id, as the application sends it.")] = None,
    tenant: Annotated[str, typer.Option(help="Whose user, as `tendril keys list` says.")] = ...,  # type: ignore[assignment]
    user_key: Annotated[str | None, typer.Option(help="The hashed id, instead of it.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete what is known of a user: log, lake, spools, state, caches; name what was trained."""
    if (user is None) == (user_key is None):
        raise typer.BadParameter("expected either a USER or --user-key")
    from tendril.cli.forget import run_forget

    sys.exit(run_forget(State.config, tenant, user, user_key, as_json=as_json))


@app.command("fit-reward")
def fit_reward(
    out: Annotated[Path, typer.Argument(help="Where to write it, as JSON, if it is better.")],
    days: Annotated[float, typer.Option(min=0, help="Of the past to learn from.")] = 28.0,
    later_days: Annotated[float, typer.Option(min=0, help="Of them, to judge it on.")] = 7.0,
) -> None:
    """Learn what early signs say about the end; written only if surely better than the recipe."""
    from tendril.cli.fit_reward import fit_reward

    sys.exit(fit_reward(State.config, out, days=days, later_days=later_days))


@app.command()
def config(as_json: JsonFlag = False) -> None:
    """Print every setting, its value and where that comes from."""
    from tendril.cli.config import print_config

    print_config(State.config, as_json=as_json)


@app.command()
def doctor(as_json: JsonFlag = False) -> None:
    """Check this machine and workspace, and say how to mend what is wrong."""
    from tendril.cli.doctor import run_doctor

    sys.exit(run_doctor(State.config, as_json=as_json))


app.add_typer(keys, name="keys", no_args_is_help=True)
app.add_typer(quarantine, name="quarantine", no_args_is_help=True)


def _run(command: str) -> None:
    from tendril.cli.processes import run_process

    run_process(command, State.config)


def main() -> None:
    """Run a command; expected failures end in one line on stderr, not in a traceback."""
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # the outermost loop: name the failure, and hide no unknown one
        from tendril.cli.failures import explain

        message = explain(error, State.config)
        if message is None:
            raise
        print(f"tendril: {message}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
