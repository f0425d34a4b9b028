"""The embedded log between processes: shared, killed, full, read-only, damaged."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tendril.log import LogReader, LogUnavailable, SqliteLog, TopicPartition
from tendril.log.sqlite_group import LEASE_S
from tendril.records import Feedback, decode
from tests.builders import make_feedback

PROJECT = Path(__file__).parents[2]
FEEDBACK = TopicPartition("feedback", 0)


def _start(role: str, path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.tendril.log_children", role, str(path), *arguments]
    return subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _by_key(reader: LogReader) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while rows := reader.poll(500, 0.0):
        for row in rows:
            found.setdefault(row.key, []).append(decode(Feedback, row.value).client_seq)
    return found


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_processes_that_open_a_new_log_at_once_append_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.db"
    children = [_start("append", path, f"s{i}", "50") for i in range(4)]
    errors = [child.communicate(timeout=60)[1] for child in children]
    assert errors == [""] * 4
    log = SqliteLog(path)
    assert log.end_offsets(["feedback"]) == {FEEDBACK: 200}
    reader = log.reader("g", ("feedback",))
    assert _by_key(reader) == {f"s{i}": list(range(50)) for i in range(4)}
    reader.close()
    log.close()


def test_no_append_that_returned_is_lost_to_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    for moment in (1, 17, 60):
        child = _start("append", path, f"killed-{moment}", "100000")
        said = [_line(child) for _ in range(moment)]
        child.kill()
        assert child.stdout is not None
        num_returned = moment + child.stdout.read().count("\n")
        child.communicate()
        assert said == [str(n) for n in range(moment)]
        log = SqliteLog(path)
        reader = log.reader(f"g{moment}", ("feedback",))
        found = _by_key(reader)[f"killed-{moment}"]
        assert found == list(range(len(found)))
        assert num_returned <= len(found) <= num_returned + 1  # killed before it could say so
        reader.close()
        log.close()


@pytest.mark.slow
def test_a_stand_by_takes_over_when_the_lease_of_a_killed_reader_ends(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db")
    log.append([("k", make_feedback(client_seq=n)) for n in range(3)])
    child = _start("hold", tmp_path / "log.db", "g")
    assert _line(child) == "3"
    stand_by = log.reader("g", ("feedback",))
    stand_by.seek({FEEDBACK: 1})
    assert list(stand_by.poll(10, 0.1)) == []
    child.kill()
    child.communicate()
    killed_at = time.monotonic()
    assert [row.offset for row in stand_by.poll(10, 30.0)] == [1, 2]
    assert time.monotonic() - killed_at < 2 * LEASE_S
    stand_by.close()
    log.close()


def test_a_full_disk_is_log_unavailable_and_keeps_what_was_appended(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    said, errors = _start("full", path).communicate(timeout=60)
    returned, _, message = said.strip().partition(" ")
    assert errors == ""
    assert message.startswith(f"{path}: ")
    assert "make room or choose another folder with TENDRIL_WORKSPACE" in message
    log = SqliteLog(path)
    assert log.end_offsets(["feedback"])[FEEDBACK] == int(returned) > 5
    log.append([("k", make_feedback())])  # there is room again
    log.close()


def test_a_read_only_folder_is_log_unavailable_with_path_and_cure(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    _, errors = _start("unable", folder / "log.db").communicate(timeout=60)
    assert f"LogUnavailable: {folder / 'log.db'}: " in errors
    assert "TENDRIL_WORKSPACE" in errors
    assert list(folder.iterdir()) == []


def test_a_read_only_file_is_log_unavailable_with_path_and_cure(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    SqliteLog(path).close()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    _, errors = _start("unable", path).communicate(timeout=60)
    tmp_path.chmod(0o755)
    assert f"LogUnavailable: {path}: " in errors


def test_a_folder_that_cannot_be_made_is_log_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LogUnavailable, match=r"file/log\.db.*TENDRIL_WORKSPACE"):
        SqliteLog(tmp_path / "file" / "log.db")


def test_a_file_that_is_not_a_log_says_so_with_path_and_cure(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"garbage " * 10_000)
    with pytest.raises(LogUnavailable, match=r"log\.db: expected an intact SQLite file.*backup"):
        SqliteLog(path)
    assert path.read_bytes() == b"garbage " * 10_000


def test_a_damaged_log_says_so_when_it_is_read_or_written(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    log.append([("k", make_feedback(trace_id="x" * 3_000)) for _ in range(100)])
    log.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(LogUnavailable, match="expected an intact SQLite file"):
        SqliteLog(path).append([("k", make_feedback())])


def test_a_reader_of_a_closed_log_goes_on(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db")
    log.append([("k", make_feedback())])
    reader = log.reader("g", ("feedback",))
    log.close()
    assert len(reader.poll(10, 0.0)) == 1
    reader.close()
