"""The watch: real rows in a real lake, a planted bot, and what must not be placed twice."""

from pathlib import Path

import pytest

from signals.episode import build_episode
from signals.housekeeping import attempt
from signals.judge import judge
from signals.recipe import load_recipe
from signals.trust.memory import Memory, read_memory, write_memory
from signals.trust.watch import Watch
from signals.turns import TurnReader
from tendril.consent import Consents
from tendril.lake import open_lake
from tendril.lake.rows import episodes_to_arrow, feedback_to_arrow, traces_to_arrow
from tendril.log import LogRecord, MemoryLog, read_all
from tendril.quarantine import account_id
from tendril.records import Feedback, Quarantine, Trace, decode
from tendril.settings import LakeSettings, Settings, SignalsSettings, TrustSettings
from tendril.telemetry import NO_TELEMETRY
from tests.builders import make_feedback, make_trace

WINDOW_S = 3_600.0
NOON = 1_720_008_000.0
"""2024-07-03 12:00 UTC, the beginning of a window."""
SHOWN, TAKEN, REFUSED = "suggestion.shown", "suggestion.accepted", "suggestion.rejected"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    trust = TrustSettings(window_s=WINDOW_S)
    return Settings(
        workspace=tmp_path,
        signals=SignalsSettings(trust=trust, revise_after_s=(30.0,)),
        lake=LakeSettings(root=str(tmp_path / "lake")),
    )


def _decisions(
    user: str, num: int, gap_s: float, after_s: float
) -> tuple[list[Trace], list[Feedback]]:
    """What one user was shown and decided; a person's gaps and waits vary, a bot's do not."""
    traces: list[Trace] = []
    events: list[Feedback] = []
    for n in range(num):
        wobble = 0.0 if user == "bot" else (n * n * 7 % 11) / 11
        at = NOON + 10 + gap_s * (n + 0.8 * wobble)
        about = {"trace_id": f"{user}-{n}", "user_key": user, "session_id": user}
        traces.append(make_trace(served_at=at, **about))
        for kind, wait_s in ((SHOWN, 0.1), (REFUSED if n % 3 else TAKEN, after_s * (1 + wobble))):
            when = at + 0.1 + (wait_s if kind != SHOWN else 0.0)
            events.append(make_feedback(
                event_id=f"{user}-{n}-{kind}", type=kind, client_time=when, ingested_at=when,
                client_seq=2 * n + (kind != SHOWN), **about,
            ))  # fmt: skip
    return traces, events


def _fill(settings: Settings, *, bot: bool) -> None:
    """An hour of a few people, and a bot where one is wanted, as the joiner writes it."""
    parts = [_decisions(f"person{i}", 30, 90.0, 1.2) for i in range(8)]
    parts += [_decisions("bot", 60, 20.0, 0.02)] if bot else []
    traces = [t for part, _ in parts for t in part]
    events = [e for _, part in parts for e in part]
    recipe, lake = load_recipe(None), open_lake(settings)
    by_trace: dict[str, list[Feedback]] = {}
    for event in events:
        by_trace.setdefault(event.trace_id or "", []).append(event)
    episodes = [
        build_episode(
            trace, judge(recipe, trace, by_trace[trace.trace_id], age_s=1e9, skew_s=0.0),
            recipe_digest=recipe.digest, closed_at=trace.served_at + 60, held_out=False,
        )
        for trace in traces
    ]  # fmt: skip
    places = [LogRecord("traces", 0, n, "s", b"", NOON) for n in range(len(traces))]
    lake.append("traces", traces_to_arrow(traces, places), {"a": len(traces)})
    places = [LogRecord("feedback", 0, n, "s", b"", NOON) for n in range(len(events))]
    lake.append("feedback", feedback_to_arrow(events, places), {"a": len(events)})
    lake.append("episodes", episodes_to_arrow(episodes), {"a": len(episodes)})


def _watch(settings: Settings, log: MemoryLog) -> Watch:
    lake = open_lake(settings)
    turns = TurnReader(lake, settings.serving.checkpoint, Consents({}))
    return Watch(settings, log, lake, load_recipe(None), turns, NO_TELEMETRY)


def _on_log(log: MemoryLog) -> list[Quarantine]:
    return [decode(Quarantine, record.value) for record in read_all(log, [Quarantine.TOPIC])]


def _began(settings: Settings, log: MemoryLog) -> Watch:
    """A watch whose service began with the window."""
    watch = _watch(settings, log)
    assert watch.look(NOON + 60) is False
    return watch


def test_a_bot_is_quarantined_for_its_window_and_nobody_else(settings: Settings):
    _fill(settings, bot=True)
    log = MemoryLog()
    watch = _began(settings, log)
    assert watch.look(NOON + WINDOW_S + 1) is False  # its early looks are not all in yet
    assert watch.look(NOON + WINDOW_S + 60) is True
    [found] = _on_log(log)
    assert (found.detector, found.scope) == ("bots", "user")
    assert found.scope_id == account_id(make_trace().tenant, "bot")
    assert (found.since, found.until) == (NOON, NOON + WINDOW_S)
    assert watch.look(NOON + WINDOW_S + 60) is False


def test_an_honest_hour_places_nothing_and_is_remembered(settings: Settings):
    _fill(settings, bot=False)
    log = MemoryLog()
    watch = _began(settings, log)
    assert watch.look(NOON + WINDOW_S + 60) is True
    assert _on_log(log) == []
    again = _watch(settings, log)
    assert again.look(NOON + WINDOW_S + 90) is False  # the file says what was looked at


def test_killed_between_placing_and_remembering_it_places_nothing_twice(settings: Settings):
    _fill(settings, bot=True)
    log = MemoryLog()
    watch = _began(settings, log)
    memory = settings.path(settings.signals.folder / "detectors.msgpack")
    before = memory.read_bytes()
    assert watch.look(NOON + WINDOW_S + 60)
    memory.write_bytes(before)
    assert _watch(settings, log).look(NOON + WINDOW_S + 60)
    assert len(_on_log(log)) == 1


def test_windows_that_passed_while_nobody_watched_are_caught_up_with(settings: Settings):
    _fill(settings, bot=True)
    log = MemoryLog()
    _began(settings, log)
    watch, now = _watch(settings, log), NOON + 5 * WINDOW_S + 60
    assert [watch.look(now) for _ in range(6)] == [True] * 5 + [False]
    assert len(_on_log(log)) == 1


def test_a_torn_memory_forgets_windows_and_goes_on(settings: Settings):
    log = MemoryLog()
    watch = _began(settings, log)
    settings.path(settings.signals.folder / "detectors.msgpack").write_bytes(b"\x85torn")
    assert watch.look(NOON + 9 * WINDOW_S) is False
    assert watch.look(NOON + 10 * WINDOW_S + 60) is True


def test_a_detector_that_is_off_does_not_look(settings: Settings):
    _fill(settings, bot=True)
    off = settings.signals.trust.model_copy(update={"detectors_off": ("bots",)})
    signals = settings.signals.model_copy(update={"trust": off})
    log = MemoryLog()
    watch = _began(settings.model_copy(update={"signals": signals}), log)
    assert watch.look(NOON + WINDOW_S + 60) is True
    assert _on_log(log) == []


def test_a_graders_outage_holds_its_scores_from_the_last_good_one_until_it_is_over(
    settings: Settings,
):
    _fill(settings, bot=False)
    lake, log = open_lake(settings), MemoryLog()

    def scored(start: int, num: int, *, fails: bool) -> None:
        events = [
            make_feedback(
                event_id=f"g{n}", trace_id="person0-0", user_key="person0", session_id="person0",
                type="grader.scored", grader="tests", grader_version="1",
                value=None if fails else (n * 37 % 101) / 101, error="timeout" if fails else None,
                ingested_at=NOON + 60.0 * n, client_time=NOON + 60.0 * n,
            )
            for n in range(start, start + num)
        ]  # fmt: skip
        places = [LogRecord("feedback", 1, start + n, "s", b"", NOON) for n in range(num)]
        lake.append("feedback", feedback_to_arrow(events, places), {"g": start + num})

    watch = _began(settings, log)
    scored(0, 40, fails=False)
    scored(40, 10, fails=True)
    assert watch.look(NOON + WINDOW_S + 60)
    [begun] = [q for q in _on_log(log) if q.detector == "grader_outage"]
    assert (begun.scope, begun.scope_id, begun.until) == ("grader", "tests@1", None)
    assert NOON + 39 * 60 < begun.since <= NOON + 40 * 60
    scored(65, 30, fails=False)
    assert watch.look(NOON + 2 * WINDOW_S + 60)
    ended = [q for q in _on_log(log) if q.detector == "grader_outage"][-1]
    assert ended.quarantine_id == begun.quarantine_id
    assert ended.until == NOON + 84 * 60


def test_an_error_that_lies_on_the_log_three_times_is_one(settings: Settings):
    _fill(settings, bot=False)
    lake, log = open_lake(settings), MemoryLog()
    event = make_feedback(
        event_id="g", trace_id="person0-0", user_key="person0", session_id="person0",
        type="grader.scored", grader="tests", grader_version="1", error="timeout",
        ingested_at=NOON + 60, client_time=NOON + 60, value=None,
    )  # fmt: skip
    places = [LogRecord("feedback", 1, n, "s", b"", NOON) for n in range(3)]
    lake.append("feedback", feedback_to_arrow([event] * 3, places), {"g": 3})
    watch = _began(settings, log)
    assert watch.look(NOON + WINDOW_S + 60)
    assert [q for q in _on_log(log) if q.scope == "grader"] == []


def test_a_clock_that_was_ahead_and_another_window_length_do_not_stop_it(settings: Settings):
    log = MemoryLog()
    path = settings.path(settings.signals.folder / "detectors.msgpack")
    write_memory(path, Memory(until=NOON + 365 * 86_400.0))
    watch = _watch(settings, log)
    assert [watch.look(NOON + 60), watch.look(NOON + WINDOW_S + 60)] == [False, True]
    write_memory(path, Memory(until=NOON + WINDOW_S / 2))  # from windows of half an hour
    assert watch.look(NOON + WINDOW_S + 60) is False
    assert watch.look(NOON + 2 * WINDOW_S + 60) is True
    assert read_memory(path).until == NOON + 2 * WINDOW_S


def test_what_a_chore_cannot_do_keeps_no_other_from_its_turn():
    def fails() -> None:
        raise RuntimeError("a window that cannot be read")

    assert attempt(fails) is None
    assert attempt(lambda: "done") == "done"
