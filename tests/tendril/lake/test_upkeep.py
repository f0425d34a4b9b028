"""Upkeep: compacts what is due, removes what nobody reads, and costs nothing where neither is."""

import os
import time

from tendril.lake.lake import Lake
from tendril.lake.upkeep import Kept, keep_up
from tests.tendril.lake.lake_rows import APP, feedback_rows, files_with, offsets_in, user

HOUR_S = 3_600.0


def upkeep(lake, compact_after_files):
    done = keep_up(lake, compact_after_files=compact_after_files, keep_replaced_s=HOUR_S)
    return list(done)


def filled(root, num_appends):
    lake = Lake(root)
    for n in range(num_appends):
        lake.append("feedback", feedback_rows(3 * n, 3 * n + 3), {APP: 3 * n + 3})
    return lake


def test_a_table_is_compacted_when_enough_small_files_are_there(tmp_path):
    lake = filled(str(tmp_path), 4)  # 12 files in 3 partitions: 9 too many
    assert upkeep(lake, 10) == []
    assert upkeep(lake, 9) == [Kept("feedback", 12, 3, 0)]
    assert offsets_in(lake) == list(range(12))


def test_nothing_to_do_makes_no_commit(tmp_path):
    lake = filled(str(tmp_path), 2)
    version = lake.version("feedback")
    assert upkeep(lake, 100) == []
    assert lake.version("feedback") == version


def test_an_old_file_of_a_killed_writer_goes_and_with_it_what_it_held(tmp_path):
    lake = filled(str(tmp_path), 1)
    (live,) = [tmp_path / name for name in files_with(tmp_path, user(1))]
    orphan = live.parent / "part-orphan.parquet"
    orphan.write_bytes(live.read_bytes())
    lake.delete("feedback", [user(1)])
    assert files_with(tmp_path, user(1)) == [str(orphan.relative_to(tmp_path))]
    assert upkeep(lake, 100) == []
    two_hours_ago = time.time() - 2 * HOUR_S
    os.utime(orphan, (two_hours_ago, two_hours_ago))
    assert upkeep(lake, 100) == [Kept("feedback", 2, 2, 1)]
    assert files_with(tmp_path, user(1)) == []
