"""The spool: accepted = logged + spooled at every moment, whatever happens to the log or to us."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from serving.spool import Spool, SpoolFull
from tendril.log import LogUnavailable, MemoryLog, SqliteLog
from tendril.records import Feedback, Record, Trace, decode
from tests.builders import make_feedback, make_trace


class ShakyLog(MemoryLog):
    """A log that can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.away = threading.Event()

    def append(self, records: Iterable[tuple[str, Record]]) -> None:
        if self.away.is_set():
            raise LogUnavailable("away")
        super().append(records)


@pytest.fixture
def event_log() -> ShakyLog:
    return ShakyLog()


@pytest.fixture
def spool(event_log: ShakyLog, tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool.db", event_log, max_records=5)
    yield spool
    spool.close()


def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def trace_ids(log: MemoryLog | SqliteLog) -> list[str]:
    records = log.reader(f"test-{time.monotonic_ns()}", [Trace.TOPIC]).poll(10_000, 0)
    return [decode(Trace, record.value).trace_id for record in records]


def test_what_is_put_reaches_the_log_in_order(spool: Spool, event_log: ShakyLog) -> None:
    for i in range(4):
        spool.put("s1", make_trace(trace_id=str(i)))
    eventually(lambda: spool.depth == 0)
    assert trace_ids(event_log) == ["0", "1", "2", "3"]
    assert spool.ledger(0.0).outcomes["traces"] == {"logged": 4, "spooled": 0}


def test_while_the_log_is_away_records_wait_and_the_rest_is_refused(
    spool: Spool, event_log: ShakyLog
) -> None:
    event_log.away.set()
    for i in range(5):
        spool.put("s1", make_trace(trace_id=str(i)))
    assert spool.is_full
    with pytest.raises(SpoolFull, match="5 records wait for the log, limit 5"):
        spool.put("s1", make_trace())
    ledger = spool.ledger(0.0)
    assert ledger.balanced
    assert ledger.read["traces"] == 6
    assert ledger.outcomes["traces"] == {"logged": 0, "spooled": 5, "refused: spool full": 1}
    event_log.away.clear()
    eventually(lambda: spool.depth == 0)
    assert trace_ids(event_log) == ["0", "1", "2", "3", "4"]
    assert spool.ledger(0.0).outcomes["traces"]["logged"] == 5


def test_an_event_is_accepted_once(spool: Spool, event_log: ShakyLog) -> None:
    feedback = make_feedback()
    assert spool.put("s1", feedback, event_id="e1")
    assert not spool.put("s1", feedback, event_id="e1")
    ledger = spool.ledger(0.0)
    assert ledger.balanced
    assert (ledger.read["feedback"], ledger.outcomes["feedback"]["duplicate"]) == (2, 1)


def test_an_event_that_was_refused_for_a_full_spool_can_come_again(
    spool: Spool, event_log: ShakyLog
) -> None:
    event_log.away.set()
    for _ in range(5):
        spool.put("s1", make_trace())
    with pytest.raises(SpoolFull):
        spool.put("s1", make_feedback(), event_id="e1")
    event_log.away.clear()
    eventually(lambda: spool.depth == 0)
    assert spool.put("s1", make_feedback(), event_id="e1")


def test_old_event_ids_are_forgotten(spool: Spool) -> None:
    spool.put("s1", make_feedback(), event_id="e1")
    spool.forget_seen(before=time.time() - 60)
    assert not spool.put("s1", make_feedback(), event_id="e1")
    spool.forget_seen(before=time.time() + 60)
    assert spool.put("s1", make_feedback(), event_id="e1")


def test_the_ledger_balances_at_every_moment(tmp_path: Path, event_log: ShakyLog) -> None:
    spool = Spool(tmp_path / "busy.db", event_log, max_records=1000)
    wrong: list[object] = []

    def put(name: int) -> None:
        for i in range(30):
            spool.put("s1", make_trace())
            spool.put("s1", make_feedback(), event_id=f"{name}-{i // 2}")

    threads = [threading.Thread(target=put, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ledger = spool.ledger(0.0)
        logged = len(trace_ids(event_log))
        if not ledger.balanced or ledger.outcomes["traces"]["logged"] > logged:
            wrong.append(ledger)
    spool.close()
    assert not wrong
    assert event_log.end_offsets([Trace.TOPIC, Feedback.TOPIC]) == {
        ("traces", 0): 90,
        ("feedback", 0): 45,
    }


def test_counts_and_waiting_records_survive_a_restart(tmp_path: Path, event_log: ShakyLog) -> None:
    event_log.away.set()
    first = Spool(tmp_path / "s.db", event_log, max_records=9)
    first.put("s1", make_trace(trace_id="t"))
    first.put("s1", make_feedback(), event_id="e1")
    first.close()
    event_log.away.clear()
    second = Spool(tmp_path / "s.db", event_log, max_records=9)
    eventually(lambda: second.depth == 0)
    assert not second.put("s1", make_feedback(), event_id="e1")
    assert trace_ids(event_log) == ["t"]
    assert second.ledger(0.0).read == {"traces": 1, "feedback": 2}
    second.close()


def test_a_spool_in_a_folder_that_cannot_be_is_refused_with_path_and_cure(
    tmp_path: Path, event_log: ShakyLog
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LogUnavailable, match=r"file/spool\.db.*TENDRIL_WORKSPACE"):
        Spool(tmp_path / "file" / "spool.db", event_log, max_records=5)


def test_a_full_disk_refuses_and_what_was_accepted_stays(
    tmp_path: Path, event_log: ShakyLog
) -> None:
    event_log.away.set()
    spool = Spool(tmp_path / "s.db", event_log, max_records=10_000)
    pages = spool._db.execute("PRAGMA page_count").fetchone()[0]
    spool._db.execute(f"PRAGMA max_page_count={pages + 20}")  # SQLite's own full disk
    accepted = 0

    def fill() -> None:
        nonlocal accepted
        while True:
            spool.put("s1", make_trace(prompt_token_ids=tuple(range(500))))
            accepted += 1

    with pytest.raises(LogUnavailable, match=r"full.*make room"):
        fill()
    assert spool.depth == accepted > 0
    assert spool.ledger(0.0).outcomes["traces"] == {"logged": 0, "spooled": accepted}
    assert spool.is_refusing  # the node says that it is not ready
    event_log.away.clear()
    eventually(lambda: spool.depth == 0)
    assert len(trace_ids(event_log)) == accepted
    eventually(lambda: not spool.is_refusing)
    assert spool.ledger(0.0).outcomes["traces"]["refused: disk"] == 1
    assert spool.ledger(0.0).balanced
    spool.close()


KILLED = """
import sys
from pathlib import Path
from serving.spool import Spool
from tendril.log import SqliteLog
from tests.builders import make_trace
folder = Path(sys.argv[1])
spool = Spool(folder / "spool.db", SqliteLog(folder / "log.db"), 10_000)
for i in range(10_000):
    spool.put("s1", make_trace(trace_id=f"{sys.argv[2]}-{i}"))
    print(i, flush=True)
"""


def test_a_kill_between_put_and_append_loses_nothing(tmp_path: Path) -> None:
    accepted: set[str] = set()
    for round_ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), str(round_)],
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            accepted.add(f"{round_}-{int(line)}")
            if int(line) == 60 + 37 * round_:
                os.kill(process.pid, signal.SIGKILL)
                break
        process.stdout.close()
        process.wait()
    event_log = SqliteLog(tmp_path / "log.db")
    spool = Spool(tmp_path / "spool.db", event_log, 10_000)
    spool.flush()
    logged = trace_ids(event_log)
    assert accepted <= set(logged)
    ledger = spool.ledger(0.0)
    assert ledger.read["traces"] == ledger.outcomes["traces"]["logged"] == len(set(logged))
    spool.close()
    event_log.close()
