"""Following the log disturbs nobody and survives what it cannot read."""

import sqlite3
from pathlib import Path

from dashboards.follower import LoopFollower
from dashboards.loop_view import LoopView
from tendril.log import MemoryLog, SqliteLog
from tests.builders import make_trace


def test_two_followers_each_see_everything() -> None:
    log = MemoryLog()
    log.append([("s", make_trace()), ("s", make_trace())])
    first, second = (LoopFollower(log, LoopView()) for _ in range(2))
    assert (first.poll(0.0), second.poll(0.0), first.poll(0.0)) == (2, 2, 0)
    log.append([("s", make_trace())])
    assert (first.poll(0.0), first.snapshot().traffic.num_decisions) == (1, 3)


def test_an_unreadable_record_is_counted_and_passed_over(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db")
    log.append([("s", make_trace()), ("s", make_trace())])
    with sqlite3.connect(tmp_path / "log.db") as db:
        db.execute("UPDATE records SET value=x'c1' WHERE topic='traces' AND offset=0")
    db.close()
    follower = LoopFollower(log, LoopView())
    assert follower.poll(0.0) == 2
    snapshot = follower.snapshot()
    assert (snapshot.num_unreadable, snapshot.traffic.num_decisions) == (1, 1)
    follower.close()
    log.close()


def test_a_closed_follower_leaves_nothing_in_the_log(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db")
    log.append([("s", make_trace())])
    follower = LoopFollower(log, LoopView())
    follower.poll(0.0)
    follower.close()
    with sqlite3.connect(tmp_path / "log.db") as db:
        left = [
            db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("leases", "committed")
        ]
    db.close()
    log.close()
    assert left == [0, 0]
