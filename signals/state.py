"""The joiner's memory of one partition: one SQLite file, changed by one transaction a batch.

A transaction holds the input offsets, open traces, their events, tombstones of closed ones, counts
and an outbox. A process killed at any moment finds all of it as it was before or after one batch,
never in between. Trace ids begin with the time (UUIDv7), so rows of one moment lie together, and
what a batch costs does not grow with the window.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from signals.asides import SCHEMA as ASIDES_SCHEMA
from signals.asides import Asides
from signals.counts import SCHEMA as COUNTS_SCHEMA
from signals.counts import Counts, Fate
from signals.held import SCHEMA as HELD_SCHEMA
from signals.held import Held
from signals.outbox import SCHEMA as OUTBOX_SCHEMA
from signals.outbox import Outbox
from signals.privacy.consent import SCHEMA as CONSENT_SCHEMA
from signals.privacy.consent import ConsentTable
from signals.trust.cap_state import CapState, Weighed
from tendril.log import TopicPartition
from tendril.log.sqlite_file import connect, transaction, unavailable
from tendril.settings import TenantConsent, TrustSettings

SCHEMA = """
CREATE TABLE IF NOT EXISTS progress (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    newest_at REAL NOT NULL, PRIMARY KEY (topic, partition));
CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY CHECK (one = 1), at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS traces (
    trace_id TEXT PRIMARY KEY, appended_at REAL NOT NULL, due_at REAL NOT NULL,
    stage INTEGER NOT NULL, revision INTEGER NOT NULL, episode_id TEXT, judged BLOB,
    fate TEXT, num_settled INTEGER NOT NULL, cap REAL NOT NULL, capped_by TEXT NOT NULL,
    account_age_s REAL, value BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS traces_by_due ON traces (due_at);
CREATE TABLE IF NOT EXISTS events (
    trace_id TEXT NOT NULL, event_id TEXT NOT NULL, appended_at REAL NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (trace_id, event_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unclaimed (
    trace_id TEXT PRIMARY KEY, due_at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS unclaimed_by_due ON unclaimed (due_at);
CREATE TABLE IF NOT EXISTS closed (
    trace_id TEXT PRIMARY KEY, fate TEXT NOT NULL, forget_at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS closed_by_age ON closed (forget_at);
"""
CACHE_KIB = 32_768
VERSION = 2
"""Of the tables; raise it with them."""


class OpenTrace(NamedTuple):
    """A trace that is not closed; `value` is the record's msgpack."""

    trace_id: str
    appended_at: float
    due_at: float
    """When its next stage takes place."""
    stage: int
    revision: int
    """Of the next episode."""
    episode_id: str | None
    """The last one's."""
    judged: bytes | None
    """Fingerprint of the last judgement."""
    fate: Fate | None
    """As it is counted; it stays for latecomers. None: it waits for the end of its window."""
    num_settled: int
    """Events of it whose fate is counted."""
    cap: float
    capped_by: str
    account_age_s: float | None
    value: bytes

    @property
    def is_settled(self) -> bool:
        return self.fate is not None

    @property
    def caps(self) -> Weighed:
        return Weighed(self.cap, self.capped_by, self.account_age_s)


OPEN_MARKS = ",".join("?" * len(OpenTrace._fields))


class StoredEvent(NamedTuple):
    """Feedback about a trace; `value` is the record's msgpack."""

    trace_id: str
    event_id: str
    appended_at: float
    value: bytes


class Tombstone(NamedTuple):
    """A closed trace, remembered until `forget_at`."""

    trace_id: str
    fate: Fate
    """Of feedback that still comes."""
    forget_at: float


class State:
    """See the module. Methods that change something are called inside `change()`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = connect(path)
        try:
            self._refuse_other_version()
            self._db.executescript(
                SCHEMA + ASIDES_SCHEMA + COUNTS_SCHEMA + OUTBOX_SCHEMA + CONSENT_SCHEMA
                + HELD_SCHEMA
            )  # fmt: skip
            self._db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        except sqlite3.OperationalError as error:
            self._db.close()
            raise unavailable(path, error) from error
        self.counts, self.outbox = Counts(self._db), Outbox(self._db)
        self.asides, self.held = Asides(self._db), Held(self._db)
        self._check_pending()

    def consents(self, tenants: Mapping[str, TenantConsent]) -> ConsentTable:
        """What users have decided, and above them their tenants."""
        return ConsentTable(self._db, tenants)

    def caps(self, trust: TrustSettings) -> CapState:
        """How much traces of one user or tenant may still weigh."""
        with self.change():
            return CapState(self._db, trust)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def change(self) -> Iterator[None]:
        """One transaction; the counts must balance at its end. Raises `LogUnavailable`."""
        self.counts.forget()
        try:
            with transaction(self._db):
                yield
                self.counts.save()
        except sqlite3.OperationalError as error:
            raise unavailable(self.path, error) from error

    def _refuse_other_version(self) -> None:
        [(version,)] = self._db.execute("PRAGMA user_version")
        [(num_tables,)] = self._db.execute("SELECT COUNT(*) FROM sqlite_master")
        if num_tables and version != VERSION:
            self._db.close()
            raise ValueError(
                f"{self.path}: expected a state of version {VERSION}, got {version}. Remove the "
                f"file to join again from the log's beginning"
            )
        self._db.execute(f"PRAGMA user_version={VERSION}")

    def _check_pending(self) -> None:
        """What is counted as pending is really there: looked up once, when the file is opened."""
        totals = self.counts.totals()
        for kind, question in (
            ("traces", "SELECT COUNT(*) FROM traces WHERE fate IS NULL"),
            ("feedback", "SELECT (SELECT COUNT(*) FROM events) - "
                         "(SELECT COALESCE(SUM(num_settled), 0) FROM traces)"),
        ):  # fmt: skip
            [(found,)] = self._db.execute(question)
            if totals[kind]["pending"] != found:
                raise RuntimeError(
                    f"{self.path}: {kind}: expected {totals[kind]['pending']} pending, "
                    f"found {found}"
                )

    def offsets(self) -> dict[TopicPartition, int]:
        rows = self._db.execute("SELECT topic, partition, next_offset FROM progress")
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}

    def newest_at(self) -> dict[TopicPartition, float]:
        """Per partition, when the newest record that was read had been appended."""
        rows = self._db.execute("SELECT topic, partition, newest_at FROM progress")
        return {TopicPartition(topic, partition): at for topic, partition, at in rows}

    def advance(self, place: TopicPartition, next_offset: int, newest_at: float) -> None:
        """Never read again what lies before `next_offset`."""
        self._db.execute(
            "INSERT INTO progress VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET "
            "next_offset=MAX(next_offset, excluded.next_offset), "
            "newest_at=MAX(newest_at, excluded.newest_at)",
            (place.topic, place.partition, next_offset, newest_at),
        )

    def clock(self) -> float:
        row = self._db.execute("SELECT at FROM clock").fetchone()
        return float(row[0]) if row else 0.0

    def set_clock(self, at: float) -> None:
        self._db.execute("INSERT OR REPLACE INTO clock VALUES (1, ?)", (at,))

    def open_traces(self, traces: Sequence[OpenTrace]) -> None:
        """Add new traces; what waited for them is theirs."""
        self._db.executemany(f"INSERT INTO traces VALUES ({OPEN_MARKS})", traces)
        self._db.executemany(
            "DELETE FROM unclaimed WHERE trace_id = ?", [(trace.trace_id,) for trace in traces]
        )

    def due(self, clock: float, limit: int) -> list[OpenTrace]:
        """The first `limit` traces with a stage to take place by `clock`, in order of time."""
        rows = self._db.execute(
            "SELECT * FROM traces WHERE due_at <= ? ORDER BY due_at, trace_id LIMIT ?",
            (clock, limit),
        )
        return [OpenTrace(*row) for row in rows.fetchall()]

    def put_back(self, traces: Iterable[OpenTrace]) -> None:
        """Keep what a stage has changed, all but the value."""
        self._db.executemany(
            "UPDATE traces SET due_at=?, stage=?, revision=?, episode_id=?, judged=?, "
            "fate=?, num_settled=? WHERE trace_id=?",
            [(*trace[2:9], trace.trace_id) for trace in traces],
        )

    def close_traces(self, tombstones: Sequence[Tombstone]) -> None:
        """Drop traces and their events, and remember what becomes of feedback that still comes."""
        ids = [tombstone[:1] for tombstone in tombstones]
        for table in ("traces", "events", "unclaimed"):
            self._db.executemany(f"DELETE FROM {table} WHERE trace_id=?", ids)
        self._db.executemany("INSERT OR REPLACE INTO closed VALUES (?,?,?)", tombstones)

    def open_since(self, trace_ids: Collection[str]) -> dict[str, tuple[float, float]]:
        """Those of `trace_ids` that are open: when they were logged, and the next look is due."""
        question = (
            "SELECT trace_id, appended_at, due_at FROM traces "
            "WHERE trace_id IN (SELECT value FROM json_each(?))"
        )
        return {
            trace_id: (at, due_at) for trace_id, at, due_at in self._ask_about(question, trace_ids)
        }

    def closed_fates(self, trace_ids: Collection[str]) -> dict[str, Fate]:
        """What becomes of new feedback to those of `trace_ids` that are closed."""
        question = (
            "SELECT trace_id, fate FROM closed WHERE trace_id IN (SELECT value FROM json_each(?))"
        )
        return dict(self._ask_about(question, trace_ids))

    def _ask_about(self, question: str, trace_ids: Collection[str]) -> list[Any]:
        if not trace_ids:
            return []
        return self._db.execute(question, (json.dumps(list(trace_ids)),)).fetchall()

    def add_events(self, events: Sequence[StoredEvent]) -> int:
        """Keep feedback until its trace closes; returns how many were new."""
        return self._db.executemany(
            "INSERT OR IGNORE INTO events VALUES (?,?,?,?)", events
        ).rowcount

    def events_of(self, trace_ids: Collection[str]) -> dict[str, list[StoredEvent]]:
        """By trace."""
        question = "SELECT * FROM events WHERE trace_id IN (SELECT value FROM json_each(?))"
        found: dict[str, list[StoredEvent]] = {}
        for row in self._ask_about(question, trace_ids):
            event = StoredEvent(*row)
            found.setdefault(event.trace_id, []).append(event)
        return found

    def drop_events(self, events: Iterable[StoredEvent]) -> None:
        self._db.executemany(
            "DELETE FROM events WHERE trace_id=? AND event_id=?", [event[:2] for event in events]
        )

    def claim_later(self, due_at: Mapping[str, float]) -> None:
        """Their traces have not come; at that moment it is seen whether they have."""
        self._db.executemany("INSERT OR IGNORE INTO unclaimed VALUES (?,?)", due_at.items())

    def unclaimed(self, clock: float, limit: int) -> list[str]:
        """The first `limit` trace ids that feedback has waited for long enough."""
        rows = self._db.execute(
            "SELECT trace_id FROM unclaimed WHERE due_at <= ? ORDER BY due_at, trace_id LIMIT ?",
            (clock, limit),
        )
        return [row[0] for row in rows.fetchall()]

    def give_up(self, trace_id: str, next_due_at: float | None) -> None:
        """Look again at `next_due_at`; None: nothing waits for it any more."""
        self._db.execute("DELETE FROM unclaimed WHERE trace_id=?", (trace_id,))
        if next_due_at is not None:
            self._db.execute("INSERT INTO unclaimed VALUES (?,?)", (trace_id, next_due_at))

    def forget(self, clock: float) -> None:
        """Drop tombstones and ids that nobody will ask for any more."""
        self._db.execute("DELETE FROM closed WHERE forget_at <= ?", (clock,))
        self.asides.forget(clock)
        self.held.forget(clock)
