"""The lake under several processes, killed ones, and a full disk: nothing lost, nothing twice."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from tendril.lake.lake import Lake
from tendril.lake.offsets import app_id
from tests.tendril.lake.lake_rows import APP, feedback_rows, files_with, offsets_in, user

NUM_KILLS = int(os.environ.get("TENDRIL_TEST_LAKE_KILLS", "20"))


def child(role: str, root: str, *arguments: object) -> subprocess.Popen[str]:
    module = "tests.tendril.lake.lake_children"
    command: Sequence[str] = (sys.executable, "-m", module, role, root, "{}", *map(str, arguments))
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "lake")


@pytest.mark.slow
def test_two_processes_append_at_once_and_every_row_is_there_once(root):
    writers = [child("append", root, partition, 60) for partition in range(2)]
    codes = [writer.wait(timeout=60) for writer in writers]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.close()
    apps = [app_id("feedback", partition) for partition in range(2)]
    lake = Lake(root)
    assert codes == [0, 0]
    assert lake.committed("feedback", apps) == dict.fromkeys(apps, 60)
    assert offsets_in(lake) == sorted(2 * list(range(60)))


@pytest.mark.slow
def test_deletions_beside_writers_and_compactions_take_their_user_and_no_other_row(root, tmp_path):
    writers = [child("work", root, partition, 300) for partition in range(2)]
    lake, num_deletions = Lake(root), 0
    while any(writer.poll() is None for writer in writers):
        num_deletions += lake.delete("feedback", [user(1)]).num_rows_before > 0
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.close()
    lake.delete("feedback", [user(1)])
    assert [writer.returncode for writer in writers] == [0, 0]
    assert num_deletions > 0
    assert offsets_in(lake) == sorted(2 * [n for n in range(300) if n % 3 != 1])
    lake.vacuum("feedback", keep_s=0)  # outputs of compactions that a deletion refused
    assert files_with(tmp_path, user(1)) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_each_kill_the_rows_are_those_of_the_committed_offsets(root):
    """The writer goes on from what is committed, so a lost or doubled batch would show at once."""
    chance = random.Random(7)
    for _ in range(NUM_KILLS):
        with child("churn", root, 0) as writer:
            assert writer.stdout is not None
            said = int(writer.stdout.readline())
            time.sleep(chance.uniform(0, 0.15))
            writer.kill()
        lake = Lake(root)
        committed = lake.committed("feedback", [APP])[APP]
        assert committed >= said
        assert offsets_in(lake) == list(range(committed))


@pytest.mark.slow
def test_a_full_disk_is_said_in_words_and_the_table_stays_as_it_was(root):
    Lake(root).append("feedback", feedback_rows(0, 3), {APP: 3})
    with child("full", root) as writer:
        said, _ = writer.communicate(timeout=60)
    assert "lake table feedback" in said
    lake = Lake(root)
    assert offsets_in(lake) == [0, 1, 2]
    lake.append("feedback", feedback_rows(3, 5), {APP: 5})
    assert offsets_in(lake) == [0, 1, 2, 3, 4]
