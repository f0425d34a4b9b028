"""`tendril doctor`: looks at this machine and workspace, and says how to mend what is wrong."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tendril.cli.checks import (
    Finding,
    check_workspace,
    checkpoint,
    engine,
    extractors,
    ports,
)
from tendril.files import WorkspaceUnwritable
from tendril.log import LogUnavailable, SqliteLog
from tendril.log.kafka_topics import wanted
from tendril.settings import KafkaSettings, Settings, load_settings

MIN_FREE_BYTES = 2 * 10**9


def run_doctor(config: Path | None, *, as_json: bool) -> int:
    """Print the findings; 0 where all is well, else 1."""
    settings = load_settings(config)
    findings = [check(settings) for check in CHECKS]
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.check}: {finding.found}")
            if not finding.ok:
                print(f"      {finding.cure}")
    return 0 if all(finding.ok for finding in findings) else 1


def _python(_: Settings) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Finding("Python", ok, version, "Install Python 3.11, 3.12 or 3.13.")


def _workspace(settings: Settings) -> Finding:
    try:
        check_workspace(settings.workspace)
    except WorkspaceUnwritable as error:
        return Finding("workspace", False, str(error), "Free space, or set TENDRIL_WORKSPACE.")
    return Finding("workspace", True, f"{settings.workspace} is writable")


def _disk(settings: Settings) -> Finding:
    free = shutil.disk_usage(settings.workspace if settings.workspace.exists() else ".").free
    found = f"{free / 1e9:.1f} GB free"
    return Finding("disk", free >= MIN_FREE_BYTES, found, "Free at least 2 GB.")


def _log(settings: Settings) -> Finding:
    if settings.log.kind == "kafka":
        return kafka_finding(settings.log.kafka)
    path = settings.path(settings.log.path)
    try:  # a new file is made, but not yet for a number of partitions
        SqliteLog(path).close()
    except LogUnavailable as error:
        return Finding("event log", False, str(error), "Free space, or set log.path.")
    return Finding("event log", True, str(path))


def kafka_finding(kafka: KafkaSettings) -> Finding:
    """Whether the broker answers and has the topics, as they should be; changes nothing."""
    try:
        from tendril.log.kafka.topics import look_at_topics
    except ModuleNotFoundError as error:
        found = f"{error.name} is not installed"
        return Finding("event log", False, found, "pip install 'tendril-rl[kafka]'")
    try:
        missing, problems = look_at_topics(kafka)
    except LogUnavailable as error:
        found, _, cure = str(error).partition(". Cure: ")
        return Finding("event log", False, found, cure)
    if problems:
        found, cures = ("; ".join(dict.fromkeys(said)) for said in zip(*problems, strict=True))
        return Finding("event log", False, found, cures)
    where = f"Kafka at {', '.join(kafka.servers)} answers"
    if not missing:
        return Finding("event log", True, f"{where}, its topics are as they should be")
    if len(missing) == len(wanted(kafka)):
        return Finding("event log", True, f"{where}; the first process creates the topics")
    return Finding(
        "event log", False, f"{where}, without {', '.join(missing)}",
        "They were deleted, or others made by hand: the next process to start creates them, empty.",
    )  # fmt: skip


CHECKS: tuple[Callable[[Settings], Finding], ...] = (
    _python, _workspace, _disk, checkpoint, engine, _log, ports, extractors,
)  # fmt: skip
