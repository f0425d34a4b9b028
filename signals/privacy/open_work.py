"""Takes a user out of a joiner's state with the books balanced: what waited counts as opted out."""

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from signals.counts import Counts
from signals.privacy.owner import Matches
from tendril.log.sqlite_file import connect, explained, transaction

STATE_TABLES = {"traces", "events", "closed", "counts", "progress"}


def is_state(path: Path) -> bool:
    """Whether the SQLite file at `path` is a joiner's."""
    with explained(path), closing(connect(path)) as db:
        rows = db.execute("SELECT name FROM sqlite_master WHERE type='table'")
        return {name for (name,) in rows} >= STATE_TABLES


def drop_open_work(path: Path, matches: Matches) -> None:
    """Delete open traces that match with their events, and single events that match elsewhere."""
    with explained(path), closing(connect(path)) as db, transaction(db):
        counts = Counts(db)
        settled = dict(db.execute("SELECT trace_id, num_settled FROM traces").fetchall())
        theirs = _drop_traces(db, counts, matches)
        for trace_id, events in _events(db).items():
            gone = [trace_id in theirs or matches(event.value) for event in events]
            _drop_events(db, counts, trace_id, events, gone, settled.get(trace_id, 0))
        counts.save()


class _Event(NamedTuple):
    at: float
    event_id: str
    value: bytes


def _drop_traces(db: sqlite3.Connection, counts: Counts, matches: Matches) -> set[str]:
    theirs = set()
    rows = db.execute("SELECT trace_id, appended_at, fate, value FROM traces").fetchall()
    for trace_id, at, fate, value in rows:
        if matches(value) or matches(trace_id):
            theirs.add(trace_id)
            if fate is None:
                counts.settle("traces", at, "opted_out")
    for table in ("traces", "unclaimed"):
        ids = [(trace_id,) for trace_id in theirs]
        db.executemany(f"DELETE FROM {table} WHERE trace_id=?", ids)
    return theirs


def _events(db: sqlite3.Connection) -> dict[str, list[_Event]]:
    """By trace, in the order in which the joiner counts them."""
    found: dict[str, list[_Event]] = {}
    rows = db.execute("SELECT trace_id, appended_at, event_id, value FROM events")
    for trace_id, *event in rows:
        found.setdefault(trace_id, []).append(_Event(*event))
    return {trace_id: sorted(events) for trace_id, events in found.items()}


def _drop_events(
    db: sqlite3.Connection,
    counts: Counts,
    trace_id: str,
    events: list[_Event],
    gone: list[bool],
    num_settled: int,
) -> None:
    """Those before `num_settled` are counted already; the others leave `pending` now."""
    for event in itertools.compress(events[num_settled:], gone[num_settled:]):
        counts.settle("feedback", event.at, "opted_out")
    db.executemany(
        "DELETE FROM events WHERE trace_id=? AND event_id=?",
        [(trace_id, event.event_id) for event in itertools.compress(events, gone)],
    )
    counted = sum(gone[:num_settled])
    db.execute("UPDATE traces SET num_settled=num_settled-? WHERE trace_id=?", (counted, trace_id))
