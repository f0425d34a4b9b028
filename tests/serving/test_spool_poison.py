"""A record in the spool that nobody can read any more does not hold up those behind it."""

import sqlite3
import time
from pathlib import Path

from serving.spool import Spool
from tendril.log import MemoryLog
from tendril.records import DeadLetter, Trace, decode
from tests.builders import make_trace
from tests.serving.test_spool import ShakyLog, eventually, trace_ids


def _letters(log: MemoryLog) -> list[DeadLetter]:
    rows = log.reader(f"test-{time.monotonic_ns()}", [DeadLetter.TOPIC]).poll(10, 0)
    return [decode(DeadLetter, row.value) for row in rows]


def test_an_unreadable_record_becomes_a_dead_letter(tmp_path: Path) -> None:
    log = ShakyLog()
    log.away.set()
    spool = Spool(tmp_path / "spool.db", log, max_records=5)
    for name in ("a", "b"):
        spool.put("s", make_trace(trace_id=name))
    spool.close()
    with sqlite3.connect(tmp_path / "spool.db") as db:
        db.execute("UPDATE spool SET value=X'C1' WHERE position=1")
    db.close()
    log.away.clear()
    spool = Spool(tmp_path / "spool.db", log, max_records=5)
    eventually(lambda: spool.depth == 0)
    assert trace_ids(log) == ["b"]
    [letter] = _letters(log)
    assert (letter.topic, letter.value) == (Trace.TOPIC, b"\xc1")
    assert spool.ledger(0.0).balanced
    spool.close()


def test_a_row_of_no_topic_becomes_one_too(tmp_path: Path) -> None:
    log = ShakyLog()
    log.away.set()
    spool = Spool(tmp_path / "spool.db", log, max_records=5)
    for name in ("a", "b"):
        spool.put("s", make_trace(trace_id=name))
    spool.close()
    with sqlite3.connect(tmp_path / "spool.db") as db:
        db.execute("UPDATE spool SET topic='tracez' WHERE position=1")
    db.close()
    log.away.clear()
    spool = Spool(tmp_path / "spool.db", log, max_records=5)
    eventually(lambda: spool.depth == 0)
    assert trace_ids(log) == ["b"]
    [letter] = _letters(log)
    assert letter.topic == "tracez"
    spool.close()
