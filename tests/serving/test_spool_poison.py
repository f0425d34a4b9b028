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


def _letter_after(damage: str, tmp_path: Path) -> DeadLetter:
    """What the first of two records becomes that were damaged in the file; the second is well."""
    log = ShakyLog()
    log.away.set()
    spool = Spool(tmp_path / "spool.db", log, max_records=5)
    for name in ("a", "b"):
        spool.put("s", make_trace(trace_id=name))
    spool.close()
    with sqlite3.connect(tmp_path / "spool.db") as db:
        db.execute(f"UPDATE spool SET {damage} WHERE position=1")
    db.close()
    log.away.clear()
    spool = Spool(tmp_path / "spool.db", log, max_records=5)
    eventually(lambda: spool.depth == 0)
    assert trace_ids(log) == ["b"]
    [letter] = _letters(log)
    assert spool.ledger(0.0).balanced
    spool.close()
    return letter


def test_an_unreadable_record_becomes_a_dead_letter(tmp_path: Path) -> None:
    letter = _letter_after("value=X'C1'", tmp_path)
    assert (letter.topic, letter.value) == (Trace.TOPIC, b"\xc1")


def test_a_row_of_no_topic_becomes_one_too(tmp_path: Path) -> None:
    assert _letter_after("topic='tracez'", tmp_path).topic == "tracez"
