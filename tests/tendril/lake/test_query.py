"""SQL over the lake, and the command that asks it."""

import csv
import io
import json
import subprocess
import sys

import pytest

from tendril.cli.config import resolved
from tendril.cli.failures import explain
from tendril.cli.query import print_query
from tendril.lake.lake import Lake
from tendril.lake.query import query
from tendril.lake.results import LakeUnavailable, QueryRefused
from tendril.lake.rows import episodes_to_arrow, ledgers_to_arrow
from tendril.records import Ledger
from tendril.settings import load_settings
from tests.builders import make_episode, make_segment
from tests.tendril.lake.lake_rows import APP, NOON_2024, feedback_rows

DAY_S = 86_400


@pytest.fixture
def lake(tmp_path):
    return Lake(str(tmp_path / "lake"))


def episode(name, **overrides):
    segment = make_segment(trace_id=overrides.pop("trace_id", "t1"))
    fields = {"episode_id": name, "served_at": NOON_2024, "segments": (segment,)}
    return make_episode(**(fields | overrides))


def test_the_latest_revision_of_each_trace_and_all_of_them(lake):
    revisions = [
        episode("e1", revision=0, reward=0.5),
        episode("e2", revision=1, reward=None, supersedes="e1", closed_at=1_100.0),
        episode("e3", trace_id="t2", reward=-0.25),
    ]
    lake.append("episodes", episodes_to_arrow(revisions), {APP: 3})
    all_of_them = query(lake, "select episode_id from episodes order by 1")
    assert list(all_of_them.rows) == [("e1",), ("e2",), ("e3",)]
    latest = query(lake, "select episode_id, reward from episodes_latest order by 1")
    assert latest.columns == ("episode_id", "reward")
    assert list(latest.rows) == [("e2", None), ("e3", -0.25)]


def test_an_unknown_reward_is_null_and_not_zero(lake):
    rewards = [episode("e1", reward=None), episode("e2", trace_id="t2", reward=0.5)]
    lake.append("episodes", episodes_to_arrow(rewards), {APP: 2})
    (row,) = query(lake, "select count(*), count(reward), avg(reward) from episodes").rows
    assert row == (2, 1, 0.5)


def test_tables_without_a_row_are_empty_and_have_their_columns(lake):
    assert list(query(lake, "select trace_id, reward from episodes_latest").rows) == []
    (count,) = query(lake, "select count(*) from traces").rows
    assert count == (0,)


def test_maps_and_structs_can_be_asked(lake):
    lake.append("episodes", episodes_to_arrow([episode("e1")]), {APP: 1})
    sql = "select components['completion'], segments[1].trace_id from episodes"
    assert list(query(lake, sql).rows) == [(0.75, "t1")]


def test_a_ledger_that_does_not_balance_is_found(lake):
    ledgers = [
        Ledger(process="signals", at=NOON_2024, read={"traces": 3},
               outcomes={"traces": {"joined": 2, "orphan": 1}}),
        Ledger(process="signals", at=NOON_2024 + 1, read={"traces": 4},
               outcomes={"traces": {"joined": 3}}),
    ]  # fmt: skip
    lake.append("ledger", ledgers_to_arrow(ledgers), {APP: 1})
    sql = """select "at", any_value(read), sum(count) from ledger group by process, node, "at", kind
             having any_value(read) <> sum(count)"""
    assert list(query(lake, sql).rows) == [(NOON_2024 + 1, 4, 3)]


def test_a_condition_on_the_day_opens_no_file_of_another_day(lake, tmp_path):
    lake.append("feedback", feedback_rows(0, 4, users=1), {APP: 4})
    lake.append("feedback", feedback_rows(4, 8, users=1, at=NOON_2024 + DAY_S), {APP: 8})
    (other,) = (tmp_path / "lake" / "feedback" / "day=2024-07-03").rglob("*.parquet")
    other.write_bytes(b"not Parquet")
    (row,) = query(
        lake, "select count(distinct event_id) from feedback where day = '2024-07-04'"
    ).rows
    assert row == (4,)
    with pytest.raises(LakeUnavailable):
        list(query(lake, "select event_id from feedback").rows)


def test_a_condition_on_the_day_reaches_the_latest_revisions(lake, tmp_path):
    for day, trace_id in ((NOON_2024, "t1"), (NOON_2024 + DAY_S, "t2")):
        revisions = [
            episode(f"{trace_id}-{n}", trace_id=trace_id, served_at=day, revision=n)
            for n in range(2)
        ]
        lake.append("episodes", episodes_to_arrow(revisions), {f"{APP}{trace_id}": 1})
    (other,) = (tmp_path / "lake" / "episodes" / "day=2024-07-03").rglob("*.parquet")
    other.write_bytes(b"not Parquet")
    sql = "select episode_id from episodes_latest where day >= '2024-07-04'"
    assert list(query(lake, sql).rows) == [("t2-1",)]


@pytest.mark.parametrize(
    "sql",
    [
        "create table mine as select 1",
        "insert into episodes select * from episodes",
        "copy (select 1) to '{folder}/out.csv'",
        "explain analyze copy (select 1) to '{folder}/out.csv'",
        "attach '{folder}/out.db'",
        "set enable_external_access = true",
        "install httpfs",
        "select * from read_csv('{folder}/secret.csv')",
        "select * from '{folder}/secret.csv'",
        "select * from read_text('{folder}/*')",
        "select * from glob('{folder}/*')",
        "select * from lake",
        "select 1; select 2",
        "",
        "selec",
    ],
)
def test_nothing_but_one_read_of_the_lake_is_done(lake, tmp_path, sql):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with pytest.raises(QueryRefused):
        list(query(lake, sql.format(folder=tmp_path)).rows)
    assert [file.name for file in tmp_path.iterdir()] == ["secret.csv"]


def test_an_unknown_table_is_named_with_those_that_exist(lake):
    with pytest.raises(QueryRefused, match="episode does not exist! Tables: traces, feedback"):
        query(lake, "select * from episode")


@pytest.fixture
def settings_file(tmp_path):
    file = tmp_path / "tendril.toml"
    file.write_text(f'[lake]\nroot = "{tmp_path}/lake"\n')
    return file


def test_the_command_prints_json_csv_or_a_table(lake, settings_file, capsys):
    rows = [episode("e1", reward=None), episode("e2", trace_id="t2", reward=float("nan"))]
    lake.append("episodes", episodes_to_arrow(rows), {APP: 2})
    sql = "select episode_id, day, reward, maturity from episodes order by 1"
    print_query(settings_file, sql, form="json")
    printed = json.loads(capsys.readouterr().out)
    assert printed[0] == {
        "episode_id": "e1", "day": "2024-07-03", "reward": None, "maturity": "final",
    }  # fmt: skip
    print_query(settings_file, sql, form="csv")
    lines = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert lines[:2] == [
        ["episode_id", "day", "reward", "maturity"],
        ["e1", "2024-07-03", "", "final"],
    ]
    print_query(settings_file, sql, form="table")
    assert capsys.readouterr().out.split()[:4] == ["episode_id", "day", "reward", "maturity"]


def test_json_of_no_row_is_an_empty_list(settings_file, capsys):
    print_query(settings_file, "select * from traces", form="json")
    assert json.loads(capsys.readouterr().out) == []


def test_a_long_table_says_that_it_was_cut(settings_file, capsys):
    print_query(settings_file, "select * from range(1500)", form="table")
    printed = capsys.readouterr()
    assert printed.out.split() == ["range", *map(str, range(1000))]
    assert "--csv prints all" in printed.err


def test_a_refusal_is_told_in_words(lake):
    with pytest.raises(QueryRefused) as refused:
        query(lake, "selec")
    assert "syntax error" in (explain(refused.value) or "")


def test_what_opens_the_store_is_never_printed(tmp_path):
    file = tmp_path / "tendril.toml"
    file.write_text(
        '[lake.storage_options]\naws_secret_access_key = "hunter2"\nother = "hunter3"\n'
    )
    rows = {key: value for key, value, _ in resolved(load_settings(file), file)}
    assert rows["lake.storage_options.aws_secret_access_key"] == "(hidden)"
    assert "hunter" not in str(rows)


LIGHT = """
import sys
import serving.process, serving.gateway.process, tendril.lake, tendril.cli.failures
heavy = {"pyarrow", "duckdb", "deltalake"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.slow
def test_serving_and_gateway_start_without_arrow_and_delta():
    subprocess.run([sys.executable, "-c", LIGHT], check=True, timeout=60)
