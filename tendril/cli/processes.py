"""The processes of a deployment, and how each is run alone or under the supervisor."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from tendril.process import run_until_stopped
from tendril.settings import Settings, load_settings

MODULES: Mapping[str, str] = {
    "serve": "serving.process",
    "gateway": "serving.gateway.process",
    "signals": "signals.process",
    "learn": "learner.process",
    "ship": "shipper.process",
    "agent": "shipper.agent_process",
    "console": "dashboards.process",
}
"""Command to module with a `run(settings, stop)`; imported only by the process itself."""


def run_process(command: str, config: Path | None) -> None:
    """Run one process in the foreground until it is told to stop."""
    settings = load_settings(config)
    run_until_stopped(command, import_module(MODULES[command]).run, settings)


def children(settings: Settings) -> Iterator[tuple[str, str]]:
    """Name and command of each process of a deployment."""
    for command in MODULES:
        yield command, command
        num = settings.signals.processes if command == "signals" else 1
        yield from ((f"{command}-{number}", command) for number in range(2, num + 1))


def arguments_for(command: str, config: Path | None) -> list[str]:
    """Arguments of the child `python` that runs `command`."""
    configured = ["--config", str(config)] if config is not None else []
    watch = ["--watch"] if command == "ship" else []
    return ["-m", "tendril.cli", *configured, command, *watch]
