"""The queries of docs/lake.md answer as they say."""

import re
import shlex
from pathlib import Path

import pytest

from tendril.lake.lake import Lake
from tendril.lake.query import query
from tendril.lake.rows import episodes_to_arrow, ledgers_to_arrow
from tendril.records import Ledger
from tests.builders import make_episode, make_segment
from tests.tendril.lake.lake_rows import APP, NOON_2024

PAGE = (Path(__file__).parents[3] / "docs" / "lake.md").read_text()


def documented():
    blocks = re.findall(r"```\n(tendril query .*?)```", PAGE, flags=re.DOTALL)
    return [shlex.split(block)[2] for block in blocks]


@pytest.fixture
def lake(tmp_path):
    """One trace revised from 0.5 to -0.5, one unknown; one ledger of two does not balance."""
    lake = Lake(str(tmp_path))
    episodes = [
        make_episode(
            episode_id=f"{trace}-{revision}", revision=revision, reward=reward,
            served_at=NOON_2024, segments=(make_segment(trace_id=trace),),
        )
        for trace, revision, reward in (("t1", 0, 0.5), ("t1", 1, -0.5), ("t2", 0, None))
    ]  # fmt: skip
    ledgers = [
        Ledger(process="signals", at=NOON_2024 + read, read={"traces": read},
               outcomes={"traces": {"joined": 3}})
        for read in (3, 4)
    ]  # fmt: skip
    lake.append("episodes", episodes_to_arrow(episodes), {APP: 1})
    lake.append("ledger", ledgers_to_arrow(ledgers), {APP: 1})
    return lake


def test_the_page_shows_three_queries_and_they_answer(lake):
    by_route, drift, ledger = (list(query(lake, sql).rows) for sql in documented())
    assert by_route == [("suggestion", 2, 1, -0.5)]
    assert [row[1:] for row in drift] == [(1, -1.0, 1)]
    assert ledger == [("signals", "", "traces", NOON_2024 + 4, 4, 3)]
