"""What has to be right before processes start: `tendril doctor` tells it, `tendril up` insists."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from serving.http_server import bound_socket
from tendril.cli.supervisor import CannotStart, WorkspaceLock
from tendril.files import write_whole
from tendril.log import SqliteLog
from tendril.model_folder import PUBLISHED_DTYPE, TOKENIZER_FILE, WEIGHTS_FILE, missing_files
from tendril.settings import InvalidSettings, Settings

NEEDED = {"config.json": "model_type", TOKENIZER_FILE: "model"}
"""Without them the files are JSON, but of something else."""


class Finding(NamedTuple):
    """One thing that was looked at; `cure` is empty where it is well."""

    check: str
    ok: bool
    found: str
    cure: str = ""


def refuse_faults(settings: Settings) -> None:
    """Raises `CannotStart` with each fault and its cure, in one line."""
    faults = [finding for check in TO_START if not (finding := check(settings)).ok]
    if faults:
        raise CannotStart("; ".join(f"{f.check}: {f.found}. {f.cure}" for f in faults))


def check_workspace(workspace: Path) -> None:
    """Raises `WorkspaceUnwritable` with the path and the cure, before anything is started."""
    write_whole(workspace / ".writable", b"")


def checkpoint(settings: Settings) -> Finding:
    """Whether the first version can be made from what the settings name."""
    folder = settings.serving.checkpoint
    fault = checkpoint_fault(folder)
    return Finding(
        "checkpoint", fault is None, str(folder) if fault is None else f"{folder}: {fault}",
        "Set serving.checkpoint to a Hugging Face folder, or leave it out: a model is packaged.",
    )  # fmt: skip


def checkpoint_fault(folder: Path) -> str | None:
    """What keeps `folder` from being a version, None for nothing; reads no weights."""
    if missing := missing_files(folder):
        return f"missing {', '.join(missing)}"
    for name, key in NEEDED.items():
        try:
            content = json.loads((folder / name).read_bytes())
        except ValueError:
            return f"{name} is not JSON"
        if not isinstance(content, dict) or key not in content:
            return f"{name} names no {key}"
    try:
        with safe_open(folder / WEIGHTS_FILE, framework="numpy") as weights:
            dtypes = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    except SafetensorError as error:
        return f"{WEIGHTS_FILE} is damaged: {error}"
    if others := sorted(dtypes - {PUBLISHED_DTYPE}):
        return (
            f"expected {PUBLISHED_DTYPE} tensors, got {', '.join(others)}; convert it: "
            "model.to(torch.bfloat16).save_pretrained(folder)"
        )
    return None


def engine(settings: Settings) -> Finding:
    """Whether the configured engine is installed."""
    if settings.serving.engine == "torch":
        return Finding("engine", True, "torch")
    from serving.vllm_engine.launch import installed_version

    try:
        return Finding("engine", True, f"vLLM {installed_version()}")
    except InvalidSettings as error:
        return Finding("engine", False, str(error), "Or set serving.engine to torch.")


def ports(settings: Settings) -> Finding:
    """Whether each process can listen where its settings say."""
    if (holder := WorkspaceLock(settings.workspace).holder()) is not None:
        return Finding("ports", True, f"in use by this workspace's own process {holder}")
    wanted = _wanted(settings)
    faults = [*_twice(wanted), *_taken(wanted)]
    if not faults:
        return Finding("ports", True, ", ".join(f"{name} {port}" for name, _, port in wanted))
    which = " or ".join(dict.fromkeys(name for name, _ in faults))
    found = "; ".join(fault for _, fault in faults)
    return Finding("ports", False, found, f"Stop what listens there, or set {which} to another.")


def _wanted(settings: Settings) -> list[tuple[str, str, int]]:
    serving, gateway, console = settings.serving, settings.gateway, settings.console
    return [
        ("gateway.port", gateway.host, gateway.port),
        ("serving.port", serving.host, serving.port),
        ("serving.admin_port", "127.0.0.1", serving.admin_port),
        ("console.port", console.host, console.port),
    ]


def _twice(wanted: Sequence[tuple[str, str, int]]) -> Iterator[tuple[str, str]]:
    first: dict[int, str] = {}
    for name, _, port in wanted:
        if port and port in first:
            yield name, f"{first[port]} and {name} are both {port}"
        first.setdefault(port, name)


def _taken(wanted: Sequence[tuple[str, str, int]]) -> Iterator[tuple[str, str]]:
    for name, host, port in wanted:
        if (fault := port_fault(host, port)) is not None:
            yield name, f"{name} {port}: {fault.lower()}"


def port_fault(host: str, port: int) -> str | None:
    """Why no server could listen there now, None where one could; port 0 always can."""
    try:
        bound_socket(host, port, "").close()
    except OSError as error:
        return str(getattr(error.__cause__, "strerror", None) or error)
    return None


def extractors(settings: Settings) -> Finding:
    """Whether each signals process can have a partition and a name of its own."""
    num, log = settings.signals.processes, settings.log
    if log.kind == "kafka":
        name, partitions, member = "log.kafka.partitions", log.kafka.partitions, log.kafka.member
    else:
        name, partitions, member = "log.partitions", log.partitions, None
    found = f"signals.processes {num}, {name} {partitions}"
    if num > partitions:
        cure = f"Lower signals.processes, or start a new log with a higher {name}."
        return Finding("extractors", False, found, cure)
    if num > 1 and member is not None:
        found += f", and log.kafka.member names all of them {member}"
        return Finding("extractors", False, found, "Leave log.kafka.member out.")
    path = settings.path(log.path)
    if log.kind == "sqlite" and path.exists():
        try:
            SqliteLog(path, partitions).close()
        except InvalidSettings as error:
            return Finding("extractors", False, str(error))
    return Finding("extractors", True, found)


TO_START: Sequence[Callable[[Settings], Finding]] = (checkpoint, engine, ports, extractors)
