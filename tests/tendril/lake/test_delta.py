"""The lake on a folder: appended once, deleted for good, compacted without a difference."""

import os
import time
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tendril.lake.compaction import groups
from tendril.lake.delta import data_files as listed_files
from tendril.lake.lake import Lake
from tendril.lake.offsets import app_id
from tendril.lake.results import LakeUnavailable, OffsetsMoved, UnknownTable
from tendril.lake.rows import episodes_to_arrow, user_bucket
from tests.builders import make_episode
from tests.tendril.lake.lake_rows import (
    APP,
    NOON_2024,
    feedback_rows,
    files_with,
    offsets_in,
    user,
)

DAY_S = 86_400


@pytest.fixture
def lake(tmp_path):
    return Lake(str(tmp_path / "lake"))


def data_files(tmp_path):
    return sorted((tmp_path / "lake" / "feedback").rglob("*.parquet"))


def live_files(lake):
    return lake.num_files("feedback")


def test_an_absent_table_is_empty_and_has_no_offsets(lake):
    assert lake.committed("feedback", [APP]) == {}
    assert lake.read("feedback").num_rows == 0
    assert lake.read("feedback", ["value"]).column_names == ["value"]
    assert list(lake.partitions("feedback")) == []
    assert lake.version("feedback") is None


def test_an_unknown_table_is_named_with_those_that_exist(lake):
    with pytest.raises(UnknownTable, match="'feedbacks': expected one of traces, feedback"):
        lake.read("feedbacks")


def test_rows_and_offsets_appear_together(lake, tmp_path):
    assert lake.append("feedback", feedback_rows(0, 5), {APP: 5})
    fresh = Lake(str(tmp_path / "lake"))
    assert fresh.committed("feedback", [APP, "other"]) == {APP: 5}
    assert offsets_in(fresh) == [0, 1, 2, 3, 4]


def test_the_same_append_twice_adds_nothing(lake):
    lake.append("feedback", feedback_rows(0, 5), {APP: 5})
    assert not lake.append("feedback", feedback_rows(0, 5), {APP: 5})
    assert not lake.append("feedback", feedback_rows(0, 3), {APP: 3})
    assert offsets_in(lake) == [0, 1, 2, 3, 4]


def test_an_append_made_before_a_rival_committed_is_refused(lake, tmp_path):
    """A writer that lost its partition, and does not know it, must not repeat the rival's rows."""
    seen = lake.committed("feedback", [APP])
    Lake(str(tmp_path / "lake")).append("feedback", feedback_rows(0, 3), {APP: 3})
    with pytest.raises(OffsetsMoved, match=f"{APP} is at 3, expected None"):
        lake.append("feedback", feedback_rows(0, 5), {APP: 5}, after=seen)
    lake.append("feedback", feedback_rows(3, 5), {APP: 5}, after={APP: 3})
    assert offsets_in(lake) == [0, 1, 2, 3, 4]


def test_offsets_never_go_back_in_part(lake):
    other = app_id("feedback", 1)
    lake.append("feedback", feedback_rows(0, 5), {APP: 5})
    with pytest.raises(OffsetsMoved):
        lake.append("feedback", feedback_rows(0, 3), {APP: 3, other: 1})
    assert lake.committed("feedback", [APP, other]) == {APP: 5}


def test_writers_of_different_partitions_take_nothing_from_one_another(lake, tmp_path):
    rival, other = Lake(str(tmp_path / "lake")), app_id("feedback", 1)
    for n in range(4):
        lake.append("feedback", feedback_rows(n, n + 1), {APP: n + 1})
        rival.append("feedback", feedback_rows(n, n + 1, partition=1), {other: n + 1})
    assert lake.committed("feedback", [APP, other]) == {APP: 4, other: 4}
    assert offsets_in(lake) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_batch_without_rows_still_moves_its_offsets(lake):
    assert lake.append("feedback", feedback_rows(0, 0), {APP: 7})
    assert lake.committed("feedback", [APP]) == {APP: 7}


def test_rows_are_read_in_one_order_however_they_were_written(lake):
    for first in (6, 0, 3):
        lake.append("feedback", feedback_rows(first, first + 3), {f"{APP}/{first}": 1})
    before = lake.read("feedback")
    in_bucket = {user(n): user_bucket(user(n)) for n in range(3)}
    expected = sorted(range(9), key=lambda n: (in_bucket[user(n % 3)], n))
    assert before["offset"].to_pylist() == expected
    assert pa.concat_tables(lake.partitions("feedback")).equals(before)


def test_rows_lie_by_day_and_bucket_and_only_those_asked_for_are_opened(lake, tmp_path):
    lake.append("feedback", feedback_rows(0, 4, users=1), {APP: 4})
    lake.append("feedback", feedback_rows(4, 8, users=1, at=NOON_2024 + DAY_S), {APP: 8})
    folders = [str(file.parent.relative_to(tmp_path / "lake")) for file in data_files(tmp_path)]
    bucket = user_bucket(user(0))
    assert folders == [
        f"feedback/day=2024-07-03/user_bucket={bucket}",
        f"feedback/day=2024-07-04/user_bucket={bucket}",
    ]
    data_files(tmp_path)[0].write_bytes(b"not Parquet")
    rows = lake.read("feedback", ["offset"], pc.field("day") == date(2024, 7, 4))
    assert rows["offset"].to_pylist() == [4, 5, 6, 7]


def test_a_row_of_no_possible_day_is_kept(lake):
    lake.append("feedback", feedback_rows(0, 3, at=1e18), {APP: 3})
    assert offsets_in(lake) == [0, 1, 2]
    assert sum(part.num_rows for part in lake.partitions("feedback")) == 3


def test_compaction_leaves_fewer_files_and_the_same_rows(lake):
    for n in range(8):
        lake.append("feedback", feedback_rows(3 * n, 3 * n + 3), {APP: 3 * n + 3})
    before, num_before = lake.read("feedback"), live_files(lake)
    done = lake.compact("feedback")
    assert lake.read("feedback").equals(before)
    assert (num_before, live_files(lake)) == (24, 3)
    assert done == (24, 3)
    assert lake.compact("feedback") == (0, 0)
    assert lake.committed("feedback", [APP]) == {APP: 24}


def test_compaction_and_appends_of_others_do_not_stop_one_another(lake, tmp_path):
    rival = Lake(str(tmp_path / "lake"))
    for n in range(4):
        lake.append("feedback", feedback_rows(n, n + 1), {APP: n + 1})
        rival.compact("feedback")
    assert offsets_in(lake) == [0, 1, 2, 3]


def test_an_earlier_version_can_still_be_read(lake):
    lake.append("feedback", feedback_rows(0, 3), {APP: 3})
    version = lake.version("feedback")
    lake.append("feedback", feedback_rows(3, 5), {APP: 5})
    assert lake.read("feedback", ["offset"], version=version).num_rows == 3


def test_a_deletion_leaves_no_byte_of_the_user_and_all_of_the_others(lake, tmp_path):
    for n in range(0, 12, 4):
        lake.append("feedback", feedback_rows(n, n + 4), {APP: n + 4})
    lake.compact("feedback")  # replaced files hold the user, too
    others = lake.read("feedback", where=pc.field("user_key") != user(1))
    assert files_with(tmp_path, user(1)) != []
    done = lake.delete("feedback", [user(1)])
    assert (done.num_rows_before, done.num_rows_after) == (4, 0)
    assert done.num_unreferenced == 0
    assert files_with(tmp_path, user(1)) == []
    assert not any((tmp_path / "lake" / "feedback" / name).exists() for name in done.files)
    assert lake.read("feedback").equals(others)
    assert lake.committed("feedback", [APP]) == {APP: 12}


def test_a_deletion_sees_rows_that_another_writer_has_just_added(lake, tmp_path):
    lake.append("feedback", feedback_rows(0, 3), {APP: 3})
    Lake(str(tmp_path / "lake")).append("feedback", feedback_rows(3, 6), {APP: 6})
    assert lake.delete("feedback", [user(0)]).num_rows_before == 2
    assert offsets_in(lake) == [1, 2, 4, 5]


def test_a_deletion_can_be_repeated(lake):
    assert lake.delete("feedback", [user(0)]) == (0, 0, (), 0)
    lake.append("feedback", feedback_rows(0, 3), {APP: 3})
    lake.delete("feedback", [user(0), user(1)])
    assert lake.delete("feedback", [user(0), user(1)]).num_rows_before == 0
    assert lake.delete("feedback", []) == (0, 0, (), 0)
    assert offsets_in(lake) == [2]


def test_a_key_with_a_quote_deletes_nobody_else(lake):
    lake.append("feedback", feedback_rows(0, 3), {APP: 3})
    assert lake.delete("feedback", ["x') OR ('1'='1"]).num_rows_before == 0
    assert offsets_in(lake) == [0, 1, 2]


def test_a_killed_writers_file_is_reported_and_removed_once_it_is_old(lake, tmp_path):
    lake.append("feedback", feedback_rows(0, 3), {APP: 3})
    (live, *_), orphan = data_files(tmp_path), "part-orphan.parquet"
    (live.parent / orphan).write_bytes(live.read_bytes())
    assert lake.delete("feedback", [user(9)]).num_unreferenced == 1
    assert lake.vacuum("feedback", keep_s=3_600) == []
    two_hours_ago = time.time() - 7_200
    os.utime(live.parent / orphan, (two_hours_ago, two_hours_ago))
    removed = lake.vacuum("feedback", keep_s=3_600)
    assert [name.rpartition("/")[2] for name in removed] == [orphan]
    assert offsets_in(lake) == [0, 1, 2]


def test_a_column_of_a_newer_version_is_null_in_older_rows_and_for_older_writers(lake):
    newer = feedback_rows(3, 5).append_column("mood", pa.array(["calm", "cross"]))
    lake.append("feedback", feedback_rows(0, 3), {APP: 3})
    lake.append("feedback", newer, {APP: 5})
    lake.append("feedback", feedback_rows(5, 6), {APP: 6})
    rows = lake.read("feedback", ["offset", "mood"]).sort_by("offset")
    assert rows["mood"].to_pylist() == [None, None, None, "calm", "cross", None]


def test_nested_rows_survive_the_folder(lake):
    rows = episodes_to_arrow([make_episode(reward=None, components={"a": -0.1, "b": 2.0})])
    lake.append("episodes", rows, {APP: 1})
    (back,) = lake.read("episodes").select(rows.column_names).to_pylist()
    assert back == rows.to_pylist()[0]


def test_the_log_of_a_long_lived_table_starts_at_a_checkpoint(lake, tmp_path):
    for n in range(55):
        lake.append("feedback", feedback_rows(n, n + 1, users=1), {APP: n + 1})
    log = tmp_path / "lake" / "feedback" / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet")) != []
    assert Lake(str(tmp_path / "lake")).committed("feedback", [APP]) == {APP: 55}


def test_a_root_that_is_a_file_is_refused_in_words(tmp_path):
    (tmp_path / "lake").write_text("a file")
    with pytest.raises(LakeUnavailable, match="lake table feedback"):
        Lake(str(tmp_path / "lake")).append("feedback", feedback_rows(0, 1), {APP: 1})


def test_a_vacuum_names_only_what_it_removed(lake):
    for n in range(2):
        lake.append("feedback", feedback_rows(3 * n, 3 * n + 3), {APP: 3 * n + 3})
    lake.compact("feedback")
    assert len(lake.vacuum("feedback", keep_s=0, dry_run=True)) == 6
    assert len(lake.vacuum("feedback", keep_s=0)) == 6
    version = lake.version("feedback")
    assert lake.vacuum("feedback", keep_s=0) == []
    assert lake.version("feedback") == version
    assert offsets_in(lake) == list(range(6))


def test_two_compactions_at_once_do_not_double_the_rows(lake, tmp_path):
    """Both start from one version: `_open` stands for a process that is a moment behind."""
    for n in range(4):
        lake.append("feedback", feedback_rows(3 * n, 3 * n + 3), {APP: 3 * n + 3})
    behind = Lake(str(tmp_path / "lake"))
    behind.version("feedback")
    todo = list(groups(listed_files(behind._open["feedback"]), ("day", "user_bucket")))
    lake.compact("feedback")
    assert [behind._replace("feedback", group) for group in todo[:1]] == [False]
    assert offsets_in(lake) == list(range(12))
    assert lake.vacuum("feedback", keep_s=0, dry_run=True) != []
    assert len(data_files(tmp_path)) == 12 + 3  # and none of the refused one


def test_a_compaction_that_a_deletion_overtook_brings_nothing_back(lake, tmp_path):
    for n in range(4):
        lake.append("feedback", feedback_rows(3 * n, 3 * n + 3), {APP: 3 * n + 3})
    behind = Lake(str(tmp_path / "lake"))
    behind.version("feedback")
    todo = list(groups(listed_files(behind._open["feedback"]), ("day", "user_bucket")))
    lake.delete("feedback", [user(1)])
    done = [behind._replace("feedback", group) for group in todo[:1]]
    assert done == [False]
    assert offsets_in(lake) == [n for n in range(12) if n % 3 != 1]
    assert files_with(tmp_path, user(1)) == []
