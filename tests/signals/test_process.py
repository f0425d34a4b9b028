"""The process: joins what is on the log, waits out outages, refuses a foreign state."""

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from signals import process
from signals.process import join, report_lag, run
from signals.workshop import Workshop
from tendril.lake import open_lake
from tendril.log import LogUnavailable, SqliteLog, TopicPartition
from tendril.quarantine import account_id
from tendril.records import Episode, Feedback, Ledger, Quarantine, Record, Trace, decode
from tendril.settings import (
    LakeSettings,
    Settings,
    SignalsSettings,
    TelemetrySettings,
    TrustSettings,
)
from tendril.telemetry import setup
from tests.builders import make_feedback, make_trace
from tests.signals.streams import make_records, make_silence, open_joiner, step

R = TypeVar("R", bound=Record)


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


@pytest.mark.slow
def test_a_bot_leaves_training_before_its_window_ends(tmp_path: Path):
    """The whole way: log, lake, detector, quarantine on the log, flagged episode."""
    trust = TrustSettings(window_s=4.0, max_user_events=0)
    signals = SignalsSettings(
        feedback_window_s=45.0, revise_after_s=(0.5,), lateness_s=0.0, trust=trust
    )
    settings = Settings(
        workspace=tmp_path, signals=signals, lake=LakeSettings(commit_interval_s=0.5)
    )
    log, stop = _log(tmp_path), threading.Event()
    thread = threading.Thread(target=run, args=(settings, stop))
    thread.start()
    time.sleep(8.0)  # the first start remembers where its windows begin
    for user in ("bot", "ada"):
        log.append([(user, record) for n in range(30) for record in _decided(user, n, time.time())])
    found = read_until(log, Quarantine, lambda q: True, wait_s=40.0)
    assert (found.detector, found.scope_id) == ("bots", account_id(make_trace().tenant, "bot"))
    held = read_until(log, Episode, lambda e: e.maturity == "final" and e.user_key == "bot")
    free = read_until(log, Episode, lambda e: e.maturity == "final" and e.user_key == "ada")
    assert held.quarantine_ids == (found.quarantine_id,)
    assert free.quarantine_ids == ()
    stop.set()
    thread.join(20)
    assert not thread.is_alive()


def _decided(user: str, n: int, now: float) -> list[Record]:
    """Shown and refused: at once by the bot, after a second and more by a person."""
    about = {"trace_id": f"{user}-{n}", "session_id": user, "user_key": user}
    wait_s = 0.01 if user == "bot" else 1.0 + (n * n * 7 % 11) / 11
    common = {"ingested_at": now, **about}
    return [
        make_trace(served_at=now, **about),
        make_feedback(
            event_id=f"{user}-{n}s", type="suggestion.shown", client_time=now, client_seq=2 * n,
            **common,
        ),
        make_feedback(
            event_id=f"{user}-{n}r", type="suggestion.rejected", client_time=now + wait_s,
            client_seq=2 * n + 1, **common,
        ),
    ]  # fmt: skip


def read_until(
    log: SqliteLog, record_type: type[R], is_it: Callable[[R], bool], wait_s: float = 90.0
) -> R:
    """The first of that type that is it."""
    reader, until = log.reader(None, [record_type.TOPIC]), time.monotonic() + wait_s
    try:
        while time.monotonic() < until:
            for record in reader.poll(1_000, 0.5):
                if is_it(found := decode(record_type, record.value)):
                    return found
    finally:
        reader.close()
    raise AssertionError(f"no such {record_type.__name__} in {wait_s} s")


def _lags(reader: InMemoryMetricReader) -> dict[tuple[object, object], object]:
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
    [lag] = [metric for metric in metrics if metric.name == "tendril.log.lag"]
    return {
        (p.attributes["group"], p.attributes["topic"]): p.value  # type: ignore[index, union-attr]
        for p in lag.data.data_points
    }


def test_lag_is_what_is_left_to_read_in_the_partitions_that_are_ours():
    reader = InMemoryMetricReader()
    telemetry = setup("signals", TelemetrySettings(), readers=[reader])
    ends = {TopicPartition("traces", n): 10 for n in range(3)}
    ends |= {TopicPartition("feedback", n): 10 for n in range(3)}
    held = {TopicPartition("traces", 0): 7, TopicPartition("traces", 2): 4}
    held |= {TopicPartition("feedback", 0): 12, TopicPartition("feedback", 2): 9}
    report_lag(telemetry, ends, held)
    assert _lags(reader) == {("signals", "traces"): 9, ("signals", "feedback"): 1}
    report_lag(telemetry, ends, {})
    assert _lags(reader) == {("signals", "traces"): 0, ("signals", "feedback"): 0}


def test_a_process_that_has_read_all_reports_no_lag(tmp_path: Path):
    settings, log = _settings(tmp_path), _log(tmp_path)
    log.append([("s1", make_silence())])
    metrics = InMemoryMetricReader()
    telemetry = setup("signals", settings.telemetry, readers=[metrics])
    stop = threading.Event()
    reader = log.reader(process.GROUP, (Trace.TOPIC, Feedback.TOPIC))
    workshop = Workshop(settings, log, open_lake(settings))
    thread = threading.Thread(
        target=join, args=(log, reader, workshop, stop), kwargs={"telemetry": telemetry}
    )
    thread.start()
    _wait_for(log, Episode)
    stop.set()
    thread.join(10)
    assert _lags(metrics) == {("signals", "traces"): 0, ("signals", "feedback"): 0}
