"""kill -9 at every moment of the join: the episodes and the counts of an uninterrupted run."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import pytest

from signals.decisions import Decisions
from signals.joiner import Joiner
from signals.state import State
from signals.trust.quarantine import by_hand
from tendril.lake import open_lake
from tendril.log import SqliteLog
from tendril.records import Episode, Feedback, Ledger, Quarantine, Record, Trace, decode, encode
from tendril.settings import Settings
from tests.builders import make_feedback, make_trace
from tests.signals.kill_target import settings_for
from tests.signals.streams import feed, make_records, make_reviewer, make_silence

NUM_RANDOM = int(os.environ.get("TENDRIL_TEST_KILLS", "8"))
"""Kills at random moments, beside those at named ones."""


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
    stream, settings = _stream(), settings_for(tmp_path)
    log = SqliteLog(settings.path(settings.log.path))
    held = by_hand("trace", "t4", since=0, until=None, reason="r", actor="me", at=0)
    log.append([(Quarantine.TOPIC, held)])
    log.append([("s1", record) for record in stream])
    script = Path(__file__).with_name("kill_target.py")
    done = subprocess.run(
        [sys.executable, "-m", f"tests.signals.{script.stem}", str(tmp_path), str(NUM_RANDOM)],
        cwd=script.parents[2], check=False, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("killed") >= 10, done.stdout
    assert done.stdout.splitlines()[-1] == "never 1 exit 0", done.stdout + done.stderr

    signals = settings.signals
    reviewer = make_reviewer(
        window_s=signals.feedback_window_s, revise_after_s=signals.revise_after_s,
        lateness_s=signals.lateness_s,
    )  # fmt: skip
    decisions = Decisions(log)
    decisions.poll()
    calm = Joiner(
        State(tmp_path / "calm.db"), reviewer, decided=decisions.decided,
        trust=signals.trust,
    )  # fmt: skip
    feed(calm, log.reader("calm", ("traces", "feedback")).poll(10_000, 0.0))
    decided = [record for _, _, record in calm.take_outgoing()]
    expected = {e.episode_id: encode(e) for e in decided if isinstance(e, Episode)}
    episodes = _read_log(log, Episode)
    assert {e.episode_id: encode(e) for e in episodes} == expected
    assert len(episodes) > len(expected)  # a kill after an append really repeated it
    _check_lake(settings, expected, stream)

    ledger = _read_log(log, Ledger)[-1]
    assert ledger.balanced
    assert (ledger.read, ledger.outcomes) == (calm.ledger(0.0).read, calm.ledger(0.0).outcomes)
    assert len(make_records([(0.0, r) for r in stream])) == sum(ledger.read.values())


def _check_lake(settings: Settings, expected: dict[str, bytes], stream: list[Record]) -> None:
    """Each once: what was decided, and what was read at its place on the log."""
    from tendril.lake.rows import from_arrow

    lake = open_lake(settings)
    stored = {table: from_arrow(Episode, lake.read(table)) for table in ("episodes", "quarantine")}
    assert {e.segments[0].trace_id for e in stored["quarantine"]} == {"t4"}
    assert not any(e.quarantine_ids for e in stored["episodes"])
    rows = [encode(e) for episodes in stored.values() for e in episodes]
    assert sorted(rows) == sorted(expected.values())
    for kind, topic in ((Trace, "traces"), (Feedback, "feedback")):
        offsets = lake.read(topic, ["offset"])["offset"].to_pylist()
        assert sorted(offsets) == list(range(sum(isinstance(r, kind) for r in stream)))
