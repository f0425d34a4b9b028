"""A clock that is set back must not lock readers out."""

import sqlite3
import time
from pathlib import Path

from tendril.log import SqliteLog
from tests.builders import make_feedback


def test_a_lease_from_before_the_clock_was_set_back_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    log.append([("k", make_feedback())])
    killed = log.reader("signals", ["feedback"])
    assert len(killed.poll(10, 0.0)) == 1
    with sqlite3.connect(path) as db:  # its lease, when the clock was an hour ahead
        for table in ("leases", "members"):
            db.execute(f"UPDATE {table} SET until=?", (time.time() + 3_600,))
    db.close()
    successor = log.reader("signals", ["feedback"])
    assert len(successor.poll(10, 0.0)) == 1
    successor.close()
    log.close()


def test_a_lease_that_holds_is_respected(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db")
    log.append([("k", make_feedback())])
    holder, other = (log.reader("signals", ["feedback"]) for _ in range(2))
    assert len(holder.poll(10, 0.0)) == 1
    assert len(other.poll(10, 0.0)) == 0
    log.close()
