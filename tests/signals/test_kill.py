"""kill -9 at every moment of the join: the episodes and the counts of an uninterrupted run."""

import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import pytest

from signals.joiner import Joiner
from signals.recipe import load_recipe
from signals.state import State
from tendril.log import SqliteLog
from tendril.records import Episode, Ledger, Record, decode, encode
from tests.builders import make_feedback, make_trace
from tests.signals.kill_target import WINDOW_S
from tests.signals.streams import join_all, make_records, make_silence


def _stream() -> list[Record]:
    """Accepted, silent and unanswered traces, repeats, an impossible event and orphans."""
    records: list[Record] = []
    for i in range(40):
        make = make_silence if i % 2 else make_trace
        trace = make(trace_id=f"t{i}", session_id=f"s{i % 7}", served_at=float(i))
        about = {"trace_id": f"t{i}", "session_id": f"s{i % 7}"}
        accepted = make_feedback(event_id=f"a{i}", **about)
        records += [trace, accepted] if i % 3 else [accepted, trace, accepted]
        if i % 5 == 0:
            undone = {"event_id": f"u{i}", "type": "edit.undone", "client_seq": i % 3}
            records += [trace, make_feedback(**(about | undone))]
        if i % 11 == 0:
            records.append(make_feedback(event_id=f"o{i}", trace_id=f"none{i}"))
    return records


R = TypeVar("R", bound=Record)


def _read_log(log: SqliteLog, record_type: type[R]) -> list[R]:
    records = log.reader("test", [record_type.TOPIC]).poll(10_000, 0.0)
    return [decode(record_type, record.value) for record in records]


@pytest.mark.slow
def test_killed_at_any_moment_it_neither_loses_nor_doubles(tmp_path: Path):
    stream = _stream()
    log = SqliteLog(tmp_path / "log.db")
    for i in range(0, len(stream), 10):
        log.append([("s1", record) for record in stream[i : i + 10]])
    script = Path(__file__).with_name("kill_target.py")
    done = subprocess.run(
        [sys.executable, "-m", f"tests.signals.{script.stem}",
         str(tmp_path / "log.db"), str(tmp_path / "killed.db")],
        cwd=script.parents[2], check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("killed") >= 10, done.stdout
    assert done.stdout.splitlines()[-1] == "never 1 exit 0", done.stdout + done.stderr

    calm = Joiner(
        State(tmp_path / "calm.db"), load_recipe(None),
        feedback_window_s=WINDOW_S, held_out_share=0.1,
    )  # fmt: skip
    calm_records = log.reader("calm", ("traces", "feedback")).poll(10_000, 0.0)
    expected = {e.episode_id: encode(e) for e in join_all(calm, calm_records).values()}
    episodes = _read_log(log, Episode)
    assert {e.episode_id: encode(e) for e in episodes} == expected
    assert len(episodes) > len(expected)  # a kill after an append really repeated it

    ledger = _read_log(log, Ledger)[-1]
    assert ledger.balanced
    assert (ledger.read, ledger.outcomes) == (calm.ledger(0.0).read, calm.ledger(0.0).outcomes)
    assert len(make_records([(0.0, r) for r in stream])) == sum(ledger.read.values())
