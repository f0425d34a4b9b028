"""What is refused before anything starts: each fault with the setting that mends it."""

import shutil
import socket
from pathlib import Path

import pytest

from tendril.cli.checks import checkpoint_fault, extractors, ports, refuse_faults
from tendril.cli.processes import children
from tendril.cli.supervisor import CannotStart, WorkspaceLock
from tendril.log import SqliteLog
from tendril.settings import PACKAGED_CHECKPOINT, Settings
from tendril.weights import TensorBytes, write_weights


def _settings(workspace: Path, **ports: int) -> Settings:
    return Settings.model_validate({
        "workspace": workspace,
        "gateway": {"port": ports.get("gateway", 0)},
        "serving": {"port": ports.get("serving", 0), "admin_port": ports.get("admin", 0)},
        "console": {"port": ports.get("console", 0)},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("which", "setting"),
    [("gateway", "gateway.port"), ("serving", "serving.port"), ("admin", "serving.admin_port"),
     ("console", "console.port")],
)  # fmt: skip
def test_a_taken_port_is_named_by_its_own_setting(tmp_path: Path, which: str, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        finding = ports(_settings(tmp_path, **{which: port}))
    assert not finding.ok
    assert finding.found == f"{setting} {port}: address already in use"
    assert finding.cure == f"Stop what listens there, or set {setting} to another."


def test_two_processes_on_one_port_are_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    finding = ports(_settings(tmp_path, gateway=port, console=port))
    assert finding.found == f"gateway.port and console.port are both {port}"


def test_ports_of_the_deployment_that_runs_here_are_its_own(tmp_path: Path) -> None:
    lock = WorkspaceLock(tmp_path)
    lock.acquire()
    with socket.create_server(("127.0.0.1", 0)) as own:
        assert ports(_settings(tmp_path, gateway=own.getsockname()[1])).ok
    lock.release()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PACKAGED_CHECKPOINT, tmp_path / "model"))


def test_the_packaged_model_starts(tmp_path: Path) -> None:
    refuse_faults(_settings(tmp_path))


def test_a_folder_without_a_model_is_refused_with_the_setting(tmp_path: Path) -> None:
    settings = Settings.model_validate({
        "workspace": tmp_path / "w", "serving": {"checkpoint": tmp_path / "nowhere"},
    })  # fmt: skip
    with pytest.raises(CannotStart, match=r"nowhere: missing config\.json.*serving\.checkpoint"):
        refuse_faults(settings)


def test_files_that_are_no_model_are_found_without_loading_it(model: Path) -> None:
    assert checkpoint_fault(model) is None
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    assert str(checkpoint_fault(model)).startswith("model.safetensors is damaged: ")
    weights.write_bytes(whole)
    (model / "config.json").write_text("{")
    assert checkpoint_fault(model) == "config.json is not JSON"
    for other in ("{}", "[]", '"model_type"'):
        (model / "config.json").write_text(other)
        assert checkpoint_fault(model) == "config.json names no model_type"


def test_a_dtype_that_no_version_is_published_in_is_refused_with_the_cure(model: Path) -> None:
    write_weights(model / "model.safetensors", {"a": TensorBytes("F32", (1,), b"\0" * 4)})
    assert "expected BF16 tensors, got F32; convert it" in str(checkpoint_fault(model))


def _sharing(workspace: Path, processes: int, **log: object) -> Settings:
    return Settings.model_validate(
        {"workspace": workspace, "signals": {"processes": processes}, "log": log}
    )


def test_more_signals_processes_than_partitions_are_refused(tmp_path: Path) -> None:
    assert extractors(_sharing(tmp_path, 4, partitions=4)).ok
    finding = extractors(_sharing(tmp_path, 3, partitions=2))
    assert not finding.ok
    assert finding.found == "signals.processes 3, log.partitions 2"
    assert extractors(_sharing(tmp_path, 3, kind="kafka", partitions=1)).ok
    assert not extractors(_sharing(tmp_path, 9, kind="kafka", partitions=16)).ok


def test_two_processes_of_one_name_in_a_kafka_group_are_refused(tmp_path: Path) -> None:
    log = {"kind": "kafka", "kafka": {"member": "one"}}
    assert extractors(_sharing(tmp_path, 1, **log)).ok
    assert extractors(_sharing(tmp_path, 2, **log)).cure == "Leave log.kafka.member out."


def test_a_log_that_was_made_with_other_partitions_is_refused(tmp_path: Path) -> None:
    settings = _sharing(tmp_path, 2, partitions=2)
    SqliteLog(settings.path(settings.log.path), 4).close()
    assert "expected log.partitions = 4" in extractors(settings).found


def test_each_signals_process_has_a_name_of_its_own(tmp_path: Path) -> None:
    started = list(children(_sharing(tmp_path, 3, partitions=4)))
    assert [name for name, command in started if command == "signals"] == [
        "signals", "signals-2", "signals-3",
    ]  # fmt: skip
    assert len({name for name, _ in started}) == len(started)
