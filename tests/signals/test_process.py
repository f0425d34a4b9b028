"""The process: joins what is on the log, waits out outages, refuses a foreign state."""

import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from signals import process
from signals.process import join, run
from signals.workshop import Workshop
from tendril.lake import open_lake
from tendril.log import LogUnavailable, SqliteLog, TopicPartition
from tendril.records import Episode, Feedback, Ledger, Record, Trace, decode
from tendril.settings import Settings, SignalsSettings
from tests.builders import make_feedback, make_trace
from tests.signals.streams import make_records, make_silence, open_joiner, step


def _settings(tmp_path: Path) -> Settings:
    return Settings(workspace=tmp_path, signals=SignalsSettings(feedback_window_s=0.2))


def _log(tmp_path: Path) -> SqliteLog:
    return SqliteLog(tmp_path / "log.db")


def _wait_for(log: SqliteLog, record_type: type[Record]) -> Record:
    """The newest record of the type; the test fails if none comes in ten seconds."""
    reader = log.reader(f"test-{time.time()}", [record_type.TOPIC])
    records = reader.poll(1_000, 10.0)
    reader.close()
    assert records, f"no {record_type.__name__} came"
    return decode(record_type, records[-1].value)


def _run_until_an_episode(tmp_path: Path) -> Episode:
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(_settings(tmp_path), stop))
    thread.start()
    episode = _wait_for(_log(tmp_path), Episode)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(episode, Episode)
    return episode


def test_run_turns_feedback_into_an_episode_and_a_balanced_ledger(tmp_path: Path):
    trace = make_trace(trace_id="t1")
    _log(tmp_path).append([("s1", trace), ("s1", make_feedback(trace_id="t1"))])
    episode = _run_until_an_episode(tmp_path)
    assert (episode.reward, episode.outcome) == (0.75, "accepted")
    ledger = _wait_for(_log(tmp_path), Ledger)
    assert isinstance(ledger, Ledger)
    assert ledger.balanced
    assert ledger.read == {"traces": 1, "feedback": 1}
    assert _log(tmp_path).reader("signals", [Trace.TOPIC]).committed() == {
        TopicPartition(Trace.TOPIC, 0): 1
    }


def test_a_state_ahead_of_the_log_is_refused_with_the_cure(tmp_path: Path):
    settings = _settings(tmp_path)
    joiner = open_joiner(settings.path(settings.signals.folder / "0.db"))
    step(joiner, make_records([(1.0, make_trace())]), now=1.0, caught_up=True)
    with pytest.raises(ValueError, match="remove the state file"):
        run(settings, threading.Event())


class _LogWithOutage(SqliteLog):
    """Refuses the first append of episodes."""

    refused = False

    def append(self, records: Iterable[tuple[str, Record]]) -> None:
        records = list(records)
        if not self.refused and any(isinstance(record, Episode) for _, record in records):
            self.refused = True
            raise LogUnavailable("the disk is full")
        super().append(records)


def test_an_outage_of_the_log_loses_nothing(tmp_path: Path):
    settings, log = _settings(tmp_path), _LogWithOutage(tmp_path / "log.db")
    log.append([("s1", make_silence())])
    stop = threading.Event()
    reader = log.reader(process.GROUP, (Trace.TOPIC, Feedback.TOPIC))
    threading.Timer(2.0, stop.set).start()
    join(log, reader, Workshop(settings, log, open_lake(settings)), stop, pause_s=0.1)
    assert log.refused
    assert isinstance(_wait_for(log, Episode), Episode)
    assert open_lake(settings).read("episodes").num_rows == 1
