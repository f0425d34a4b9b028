"""Quarantines in the joiner: what is held leaves training, and comes back once, by a release."""

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from signals.decisions import Decided
from signals.intake import take
from signals.joiner import Joiner
from signals.state import State
from signals.trust.quarantine import after, by_hand, released
from tendril.consent import person_of
from tendril.log import LogRecord
from tendril.quarantine import Quarantines, Subject, account_id
from tendril.records import Consent, Episode, Quarantine, encode
from tests.builders import make_feedback, make_trace
from tests.signals.streams import (
    IN_MEMORY,
    LATER,
    WINDOW_S,
    feed,
    make_records,
    make_reviewer,
    step,
    take_episodes,
)

STREAM = make_records([
    (10.0, make_trace(trace_id="t1", user_key="eve", served_at=9.0)),
    (10.0, make_trace(trace_id="t2", user_key="ada", served_at=9.0)),
    (11.0, make_feedback(event_id="e1", trace_id="t1", user_key="eve")),
    (11.0, make_feedback(event_id="e2", trace_id="t2", user_key="ada")),
])  # fmt: skip
EVE = account_id(make_trace().tenant, "eve")


def _place(at: float, scope: Any = "user", scope_id: str = EVE) -> Quarantine:
    return by_hand(scope, scope_id, since=0, until=None, reason="r", actor="me", at=at)


def _known(*records: Quarantine) -> Quarantines:
    return Quarantines(records)


def _joiner(quarantines: Quarantines, path: Path = IN_MEMORY, **schedule: Any) -> Joiner:
    return Joiner(State(path), make_reviewer(**schedule), decided=Decided(quarantines))


def _held() -> tuple[Quarantine, Quarantines, Joiner]:
    """The joiner behind the last look at a trace of Eve's, whom a quarantine holds."""
    place = _place(1.0)
    quarantines = _known(place)
    joiner = _joiner(quarantines)
    step(joiner, STREAM)
    step(joiner, [], now=100.0, caught_up=True)
    take_episodes(joiner)
    return place, quarantines, joiner


def _fates(joiner: Joiner) -> dict[str, int]:
    return {name: n for name, n in joiner.ledger(0.0).outcomes["traces"].items() if n}


def test_what_is_held_is_kept_flagged_and_counted():
    place = _place(1.0)
    joiner = _joiner(_known(place))
    feed(joiner, STREAM)
    found = take_episodes(joiner)
    assert found["t1"].quarantine_ids == (place.quarantine_id,)
    assert found["t1"].reward == found["t2"].reward
    assert found["t2"].quarantine_ids == ()
    assert _fates(joiner) == {"quarantined": 1, "joined": 1}


def test_a_quarantine_of_a_later_moment_does_not_reach_back():
    joiner = _joiner(_known(_place(10.0 + WINDOW_S + 1)))
    feed(joiner, STREAM)
    assert take_episodes(joiner)["t1"].quarantine_ids == ()


@pytest.mark.parametrize("early_look", [True, False])
def test_a_release_makes_the_next_revision_which_is_trained_on_once(early_look: bool):
    """Where a look before the quarantine was trainable, the release is not trained on again."""
    place = _place(30.0 if early_look else 1.0)
    quarantines = _known(place)
    joiner = _joiner(quarantines, revise_after_s=(15.0,) if early_look else ())
    step(joiner, STREAM)
    step(joiner, [], now=28.0, caught_up=True)
    early = take_episodes(joiner)
    step(joiner, [], now=100.0, caught_up=True)
    held = take_episodes(joiner)["t1"]
    assert held.quarantine_ids
    quarantines.take(released(place, reason="known", actor="me", at=200.0), logged_at=200.0)
    step(joiner, [], now=199.0, caught_up=True)
    assert take_episodes(joiner) == {}
    step(joiner, [], now=201.0, caught_up=True)
    free = take_episodes(joiner)["t1"]
    step(joiner, [], now=LATER, caught_up=True)
    assert take_episodes(joiner) == {}
    assert (free.supersedes, free.revision) == (held.episode_id, held.revision + 1)
    assert (free.reward, free.closed_at, free.quarantine_ids) == (held.reward, 200.0, ())
    assert _fates(joiner) == {"joined": 2}
    trained = [e for e in [*early.values(), held, free]
               if e.segments[0].trace_id == "t1" and not e.quarantine_ids
               and e.is_first("provisional")]  # fmt: skip
    assert len(trained) == 1
    assert free.is_first("final")


def test_a_release_while_latecomers_are_waited_for_is_seen_by_the_last_look():
    place = _place(1.0)
    quarantines = _known(place)
    joiner = _joiner(quarantines, lateness_s=50.0)
    step(joiner, STREAM)
    step(joiner, [], now=80.0, caught_up=True)
    held = take_episodes(joiner)["t1"]
    quarantines.take(released(place, reason="known", actor="me", at=90.0), logged_at=90.0)
    step(joiner, [], now=LATER, caught_up=True)
    free = take_episodes(joiner)["t1"]
    assert (free.supersedes, free.quarantine_ids) == (held.episode_id, ())
    assert _fates(joiner) == {"joined": 2}


def test_who_withdrew_meanwhile_is_not_released():
    place, quarantines, joiner = _held()
    consent = Consent(person=person_of(make_trace().tenant, "eve"), train=False, at=150.0)
    record = LogRecord(Consent.TOPIC, 0, 0, "c", encode(consent), 150.0)
    quarantines.take(released(place, reason="known", actor="me", at=200.0), logged_at=200.0)
    joiner.step(take([]), now=300.0, caught_up=True, consents=[record])
    assert take_episodes(joiner) == {}
    assert _fates(joiner) == {"joined": 1, "opted_out": 1}


def test_a_grader_of_an_outage_holds_only_what_it_scored_then():
    stream = make_records([
        (10.0, make_trace(trace_id="t1")),
        (10.0, make_trace(trace_id="t2")),
        *((11.0, make_feedback(
            event_id=f"g{n}", trace_id=f"t{n}", type="grader.scored", grader="tests",
            grader_version="1", value=0.5, ingested_at=at,
        )) for n, at in ((1, 50.0), (2, 150.0))),
    ])  # fmt: skip
    outage = msgspec.structs.replace(_place(1.0, "grader", "tests@1"), since=40.0, until=60.0)
    joiner = _joiner(_known(outage))
    feed(joiner, stream)
    found = take_episodes(joiner)
    assert found["t1"].quarantine_ids == (outage.quarantine_id,)
    assert found["t2"].quarantine_ids == ()


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_batches_and_restarts_change_no_byte(batch: int, tmp_path: Path):
    """With quarantines that come and go, known from the beginning, as a replay knows them."""
    place = _place(30.0)
    release = released(place, reason="known", actor="me", at=500.0)
    again = msgspec.structs.replace(place, at=800.0)

    def run(path: Path, size: int) -> list[Episode]:
        found: list[Episode] = []
        for start in range(0, len(STREAM), size):
            joiner = _joiner(_known(place, release, again), path)
            step(joiner, STREAM[start : start + size])
            found += [r for _, _, r in joiner.take_outgoing() if isinstance(r, Episode)]
        for now in (28.0, 100.0, 600.0, LATER):
            joiner = _joiner(_known(place, release, again), path)
            step(joiner, [], now=now, caught_up=True)
            found += [r for _, _, r in joiner.take_outgoing() if isinstance(r, Episode)]
        return found

    whole = run(tmp_path / "whole.db", 1_000)
    assert [len(e.quarantine_ids) for e in whole if e.user_key == "eve"] == [1, 0]
    assert [encode(e) for e in run(tmp_path / "parts.db", batch)] == [encode(e) for e in whole]


def test_a_quarantine_that_gets_an_end_frees_what_lies_behind_it():
    place, quarantines, joiner = _held()
    narrowed = msgspec.structs.replace(place, until=5.0, at=150.0)  # t1 was served at 9
    quarantines.take(narrowed, logged_at=150.0)
    step(joiner, [], now=200.0, caught_up=True)
    assert take_episodes(joiner)["t1"].quarantine_ids == ()


def test_of_two_outages_of_a_grader_the_second_holds_after_the_first_is_released():
    first = msgspec.structs.replace(_place(1.0, "grader", "tests@1"), since=40.0)
    second = by_hand("grader", "tests@1", since=45.0, until=None, reason="r", actor="me", at=1.0)
    quarantines = _known(first, second)
    stream = make_records([
        (10.0, make_trace(trace_id="t1")),
        (11.0, make_feedback(event_id="g", trace_id="t1", type="grader.scored", grader="tests",
                             grader_version="1", value=0.5, ingested_at=50.0)),
    ])  # fmt: skip
    joiner = _joiner(quarantines)
    step(joiner, stream)
    step(joiner, [], now=100.0, caught_up=True)
    assert len(take_episodes(joiner)["t1"].quarantine_ids) == 2
    quarantines.take(released(first, reason="r", actor="me", at=150.0), logged_at=150.0)
    step(joiner, [], now=200.0, caught_up=True)
    assert take_episodes(joiner) == {}
    quarantines.take(released(second, reason="r", actor="me", at=250.0), logged_at=250.0)
    step(joiner, [], now=300.0, caught_up=True)
    assert take_episodes(joiner)["t1"].quarantine_ids == ()


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_any_score_of_an_outage_holds_whatever_the_events_are_called(order: tuple[str, str]):
    stream = make_records([
        (10.0, make_trace(trace_id="t1")),
        *((11.0, make_feedback(event_id=name, trace_id="t1", type="grader.scored", grader="tests",
                               grader_version="1", value=0.5, ingested_at=at, client_seq=seq))
          for name, at, seq in ((order[0], 20.0, 2), (order[1], 50.0, 3))),
    ])  # fmt: skip
    outage = msgspec.structs.replace(_place(1.0, "grader", "tests@1"), since=40.0, until=60.0)
    joiner = _joiner(_known(outage))
    feed(joiner, stream)
    episode = take_episodes(joiner)["t1"]
    assert episode.quarantine_ids == (outage.quarantine_id,)
    assert _known(outage).of(Subject.of(episode)) == [outage]  # learner and gate find it too


def test_a_quarantine_on_somebody_else_changes_no_last_look():
    stream = [*STREAM[:2]]
    with_none = _joiner(_known(), lateness_s=50.0)
    with_one = _joiner(_known(_place(80.0, "user", "acme/nobody")), lateness_s=50.0)
    for joiner in (with_none, with_one):
        feed(joiner, stream)
    found = [[encode(r) for _, _, r in joiner.take_outgoing()] for joiner in (with_none, with_one)]
    assert found[0] == found[1]


def test_a_replacement_stamped_by_a_slow_clock_counts_all_the_same():
    place = _place(1.0)
    quarantines = _known(place, released(place, reason="r", actor="me", at=1_100.0))
    again = after(msgspec.structs.replace(place, at=1_050.0), quarantines)
    quarantines.take(again, logged_at=1_200.0)
    assert quarantines.open() == [again]


def test_a_state_of_another_version_is_refused_with_the_cure(tmp_path: Path):
    path = tmp_path / "0.db"
    State(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=1")
    with pytest.raises(ValueError, match="Remove the file to join again"):
        State(path)
