"""The demo's folder and settings: everything on one machine, on a faster clock."""

import os
import shutil
import socket
from pathlib import Path
from typing import Any, Literal

import tomli_w

import offline_rl.autocomplete
from tendril.cli.checks import check_workspace, port_fault
from tendril.cli.demo_broker import NUM_PARTITIONS
from tendril.files import write_whole
from tendril.settings import EngineName, load_settings

MARKER = "demo"
KEPT = (MARKER, "supervisor.lock", ".writable")
RECIPE = Path(offline_rl.autocomplete.__file__).parent / "recipe.toml"
RETENTION_S = 5.0
"""After acceptance; the recipe's one horizon."""
FEEDBACK_WINDOW_S = 9.0
PORTS = {"gateway": 8000, "admin": 8001, "serving": 8002, "console": 8080}
BROKER_PORT = 9092
LogKind = Literal["sqlite", "kafka"]


class NotADemoFolder(FileExistsError):
    """The folder holds something that the demo did not make, and must not delete."""


def prepare(
    workspace: Path, seed: int, engine: EngineName = "torch", log: LogKind = "sqlite"
) -> Path:
    """An empty workspace with `tendril.toml` in it; returns that file.

    Only who holds the workspace's lock may call it: what was there goes.
    Raises `NotADemoFolder`, or `WorkspaceUnwritable` with the cure.
    """
    if workspace.exists():
        _clear(workspace)
    check_workspace(workspace)
    write_whole(workspace / MARKER, b"made by `tendril demo`, which may delete this folder\n")
    ports = {name: free_port(port) for name, port in PORTS.items()}
    config = workspace / "tendril.toml"
    settings = demo_settings(workspace, seed, ports, engine)
    if log == "kafka":
        settings["log"] = kafka_settings(free_port(BROKER_PORT))
    write_whole(config, tomli_w.dumps(settings).encode())
    return config


def demo_folder() -> Path:
    """`demo` below the workspace; from here on this process and its children write only there.

    A `TENDRIL_WORKSPACE` would go before the demo's own file, and name somebody's real data.
    """
    folder = (load_settings(None).workspace / "demo").absolute()
    os.environ["TENDRIL_WORKSPACE"] = str(folder)
    return folder


def _clear(workspace: Path) -> None:
    """Delete what an earlier demo left. Lock and marker stay: one holds, and both may be killed."""
    others = [entry for entry in workspace.iterdir() if entry.name not in KEPT]
    if others and not (workspace / MARKER).exists():
        raise NotADemoFolder(f"{workspace}: expected an earlier demo's folder, got another")
    for entry in others:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def demo_settings(
    workspace: Path, seed: int, ports: dict[str, int], engine: EngineName = "torch"
) -> dict[str, Any]:
    """What differs from the defaults, and why it may here: minutes instead of hours."""
    return {
        "workspace": str(workspace.absolute()),
        "serving": {
            "engine": engine,
            "port": ports["serving"],
            "admin_port": ports["admin"],
            "seed": seed,
        },
        "signals": {
            "recipe": str(RECIPE),
            "feedback_window_s": FEEDBACK_WINDOW_S,
            "revise_after_s": [],
            "lateness_s": 0.0,
            "held_out_share": 0.12,
            # Two dozen people do a company's work here: each makes hundreds of traces an hour.
            "trust": {"max_user_events": 0},
        },
        "learner": {"learning_rate": 3e-4, "publish_every_s": 45.0},
        # A minute of two dozen users decides less than an hour of a company: wider margins.
        "shipping": {
            "gate_min_episodes": 80,
            "gate_max_episodes": 400,
            "reward_margin": 0.08,
            "max_accepted_drop": 0.4,
            "kl_budget": 0.2,
        },
        "gateway": {"port": ports["gateway"]},
        "console": {"port": ports["console"]},
    }


def kafka_settings(port: int) -> dict[str, Any]:
    """The log on the demo's own broker."""
    kafka = {
        "servers": [f"127.0.0.1:{port}"],
        "partitions": NUM_PARTITIONS,
        "retention_hours": 1,
    }
    return {"kind": "kafka", "kafka": kafka}


def free_port(wanted: int) -> int:
    """`wanted`, or where it is taken another one that is free now, said aloud."""
    if port_fault("127.0.0.1", wanted) is None:
        return wanted
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    print(f"port {wanted} is taken: using {port} instead", flush=True)
    return port
