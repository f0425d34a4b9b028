"""Files appear whole, whatever happens to the writer."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tendril.files import (
    FolderInUse,
    WorkspaceUnwritable,
    sole_user,
    whole_file,
    write_whole,
)

PROJECT = Path(__file__).parents[2]

KILLED_AT_EVERY_LINE = """
import json, os, signal, sys
from pathlib import Path
from tendril import files

path, outcomes = Path(sys.argv[1]), []

def kill_at(line_number):
    seen = 0
    def trace(frame, event, arg):
        nonlocal seen
        if frame.f_code.co_filename != files.__file__:
            return None
        if event == "line":
            seen += 1
            if seen == line_number:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    return trace

for line_number in range(1, 1000):
    files.write_whole(path, b"old" * 50_000)
    child = os.fork()
    if not child:
        sys.settrace(kill_at(line_number))
        files.write_whole(path, b"new" * 70_000)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    data = path.read_bytes()
    outcomes.append({b"old" * 50_000: "old", b"new" * 70_000: "new"}.get(data, "torn"))
    if not os.WIFSIGNALED(status):
        break
print(json.dumps(outcomes))
"""

WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from tendril.files import write_whole

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
write_whole(Path(sys.argv[1]), b"x" * 100_000)
"""

WITHOUT_PERMISSION = """
import os, sys
from pathlib import Path
from tendril.files import write_whole

if os.geteuid() == 0:
    os.setuid(65534)
write_whole(Path(sys.argv[1]), b"x")
"""


def _run(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, str(path)],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_file_appears_in_new_folders_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_nothing_appears_when_the_block_raises(tmp_path: Path) -> None:
    def write_half() -> None:
        with whole_file(tmp_path / "file") as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_killed_at_any_line_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    ended = _run(KILLED_AT_EVERY_LINE, tmp_path / "file")
    outcomes = json.loads(ended.stdout)
    assert len(outcomes) > 10
    assert outcomes == sorted(outcomes, key=["old", "new"].index)  # one switch, never torn
    assert (outcomes[0], outcomes[-1]) == ("old", "new")


def test_a_full_disk_keeps_the_old_file_and_names_path_cause_and_cure(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    ended = _run(WITHOUT_ROOM, path)
    assert ended.returncode == 1
    assert f"WorkspaceUnwritable: cannot write {path}: File too large. Free space" in ended.stderr
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_read_only_folder_names_path_cause_and_cure(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    ended = _run(WITHOUT_PERMISSION, folder / "file")
    assert f"cannot write {folder / 'file'}: Permission denied." in ended.stderr
    assert "TENDRIL_WORKSPACE" in ended.stderr
    assert list(folder.iterdir()) == []


def test_a_file_where_a_folder_should_be_is_reported_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(WorkspaceUnwritable, match="taken/file") as caught:
        write_whole(tmp_path / "taken" / "file", b"x")
    assert isinstance(caught.value, OSError)
    assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)


HOLDER = """
import sys
from pathlib import Path
from tendril.files import sole_user
with sole_user(Path(sys.argv[1]), "x"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_has_one_user_and_is_free_when_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FolderInUse, match=r"set shipping\.node_folder"):
            sole_user(folder, "shipping.node_folder").__enter__()
        holder.kill()
    with sole_user(folder, "x"):
        pass
    with sole_user(folder, "x"):
        pass
