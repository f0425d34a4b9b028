"""The joiner's memory: one SQLite file, changed by one transaction a batch.

A transaction holds the input offsets, open traces, waiting feedback, ids already seen, closed
traces, counts and an outbox. A process killed at any moment finds all of it as it was before or
after one batch, never in between. Several processes may open the file; transactions queue.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from tendril.log import LogRecord, TopicPartition
from tendril.log.sqlite import connect, transaction, unavailable
from tendril.records import TYPE_BY_TOPIC, Record, decode, encode

Kind = Literal["traces", "feedback"]
KINDS: tuple[Kind, ...] = ("traces", "feedback")
Fate = Literal["joined", "duplicate", "orphan", "late", "opted_out", "invalid", "no_trace"]
"""`no_trace`: feedback about a session or a user, such as a heartbeat, which pays no trace."""
FATES: tuple[Fate, ...] = get_args(Fate)
SCHEMA = """
CREATE TABLE IF NOT EXISTS progress (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    newest_at REAL NOT NULL, PRIMARY KEY (topic, partition));
CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY CHECK (one = 1), at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS counts (
    kind TEXT NOT NULL, name TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (kind, name));
CREATE TABLE IF NOT EXISTS seen (
    kind TEXT NOT NULL, id TEXT NOT NULL, forget_at REAL NOT NULL,
    PRIMARY KEY (kind, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_by_age ON seen (forget_at);
CREATE TABLE IF NOT EXISTS open_traces (
    trace_id TEXT PRIMARY KEY, appended_at REAL NOT NULL, closes_at REAL NOT NULL,
    value BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS open_traces_by_close ON open_traces (closes_at);
CREATE TABLE IF NOT EXISTS closed_traces (
    trace_id TEXT PRIMARY KEY, fate TEXT NOT NULL, forget_at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS closed_traces_by_age ON closed_traces (forget_at);
CREATE TABLE IF NOT EXISTS waiting (
    event_id TEXT PRIMARY KEY, trace_id TEXT NOT NULL, appended_at REAL NOT NULL,
    waits_until REAL NOT NULL, value BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS waiting_by_trace ON waiting (trace_id);
CREATE INDEX IF NOT EXISTS waiting_by_end ON waiting (waits_until);
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key TEXT NOT NULL,
    value BLOB NOT NULL);
"""


class OpenTrace(NamedTuple):
    """A trace whose feedback window is open; `value` is the record's msgpack."""

    trace_id: str
    appended_at: float
    closes_at: float
    value: bytes


class WaitingEvent(NamedTuple):
    """Feedback that is not accounted for yet; without a trace it waits until `waits_until`."""

    event_id: str
    trace_id: str
    appended_at: float
    waits_until: float
    value: bytes


class State:
    """See the module. Methods that change something are called inside `change()`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = connect(path)
        self._counted: Counter[tuple[str, str]] = Counter()
        try:
            self._db.executescript(SCHEMA)
        except sqlite3.OperationalError as error:
            raise unavailable(path, error) from error
        self._check_pending()

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def change(self) -> Iterator[None]:
        """One transaction; the counts must balance at its end. Raises `LogUnavailable`."""
        self._counted.clear()
        try:
            with transaction(self._db):
                yield
                self._save_counts()
        except sqlite3.OperationalError as error:
            raise unavailable(self.path, error) from error

    # Progress and time

    def offsets(self) -> dict[TopicPartition, int]:
        rows = self._db.execute("SELECT topic, partition, next_offset FROM progress")
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}

    def newest_at(self) -> dict[TopicPartition, float]:
        """Per partition, when the newest record that was read had been appended."""
        rows = self._db.execute("SELECT topic, partition, newest_at FROM progress")
        return {TopicPartition(topic, partition): at for topic, partition, at in rows}

    def advance(self, record: LogRecord) -> None:
        """Never read `record` again."""
        self._db.execute(
            "INSERT INTO progress VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET "
            "next_offset=MAX(next_offset, excluded.next_offset), "
            "newest_at=MAX(newest_at, excluded.newest_at)",
            (record.topic, record.partition, record.offset + 1, record.appended_at),
        )

    def clock(self) -> float:
        row = self._db.execute("SELECT at FROM clock").fetchone()
        return float(row[0]) if row else 0.0

    def set_clock(self, at: float) -> None:
        self._db.execute("INSERT OR REPLACE INTO clock VALUES (1, ?)", (at,))

    # Counts

    def count(self, kind: Kind, name: Literal["read"] | Fate) -> None:
        self._counted[kind, name] += 1

    def counts(self) -> dict[str, dict[str, int]]:
        """By kind: how many were read, are pending, and met each fate."""
        totals = {kind: dict.fromkeys(("read", "pending", *FATES), 0) for kind in KINDS}
        for kind, name, n in self._db.execute("SELECT kind, name, n FROM counts"):
            totals[kind][name] = n
        return {str(kind): names for kind, names in totals.items()}

    def _save_counts(self) -> None:
        self._db.executemany(
            "INSERT INTO counts VALUES (?,?,?) ON CONFLICT DO UPDATE SET n = n + excluded.n",
            [(kind, name, n) for (kind, name), n in self._counted.items()],
        )
        for kind, names in self.counts().items():
            read = names.pop("read")
            if read != sum(names.values()):
                raise RuntimeError(f"{self.path}: {kind}: expected {read} accounted, got {names}")

    def _check_pending(self) -> None:
        """What is counted as pending is really there: looked up once, when the file is opened."""
        with transaction(self._db):
            for kind, table in zip(KINDS, ("open_traces", "waiting"), strict=True):
                [(found,)] = self._db.execute(f"SELECT COUNT(*) FROM {table}")
                counted = self.counts()[kind]["pending"]
                if counted != found:
                    raise RuntimeError(
                        f"{self.path}: {kind}: expected {counted} pending, found {found}"
                    )

    # Ids

    def is_new(self, kind: Kind, record_id: str, *, forget_at: float) -> bool:
        """Remember an id until `forget_at`; False if it is a repeat."""
        row = (kind, record_id, forget_at)
        return self._db.execute("INSERT OR IGNORE INTO seen VALUES (?,?,?)", row).rowcount == 1

    def forget(self, clock: float) -> None:
        self._db.execute("DELETE FROM seen WHERE forget_at <= ?", (clock,))
        self._db.execute("DELETE FROM closed_traces WHERE forget_at <= ?", (clock,))

    # Traces and feedback

    def open_trace(self, trace: OpenTrace) -> None:
        self._db.execute("INSERT INTO open_traces VALUES (?,?,?,?)", trace)
        self._counted["traces", "pending"] += 1

    def due(self, clock: float, limit: int) -> list[OpenTrace]:
        """The first `limit` open traces, in order of closing, whose window has passed."""
        rows = self._db.execute(
            "SELECT trace_id, appended_at, closes_at, value FROM open_traces "
            "WHERE closes_at <= ? ORDER BY closes_at, trace_id LIMIT ?",
            (clock, limit),
        )
        return [OpenTrace(*row) for row in rows.fetchall()]

    def close_trace(self, trace_id: str, *, fate_of_later: Fate, forget_at: float) -> None:
        """Forget an open trace's content, keep what becomes of feedback that comes after."""
        gone = self._db.execute("DELETE FROM open_traces WHERE trace_id = ?", (trace_id,))
        self._counted["traces", "pending"] -= gone.rowcount
        row = (trace_id, fate_of_later, forget_at)
        self._db.execute("INSERT OR REPLACE INTO closed_traces VALUES (?,?,?)", row)

    def fate_of_later(self, trace_id: str) -> Fate | None:
        """What becomes of new feedback to a closed trace; None for one that is not closed."""
        row = self._db.execute(
            "SELECT fate FROM closed_traces WHERE trace_id = ?", (trace_id,)
        ).fetchone()
        return row[0] if row else None

    def wait(self, event: WaitingEvent) -> None:
        self._db.execute("INSERT INTO waiting VALUES (?,?,?,?,?)", event)
        self._counted["feedback", "pending"] += 1

    def waiting_for(self, trace_id: str) -> list[WaitingEvent]:
        rows = self._db.execute("SELECT * FROM waiting WHERE trace_id = ?", (trace_id,))
        return [WaitingEvent(*row) for row in rows.fetchall()]

    def waiting_in_vain(self, clock: float, limit: int) -> list[WaitingEvent]:
        """The first `limit` events whose wait is over and whose trace is not open."""
        rows = self._db.execute(
            "SELECT * FROM waiting WHERE waits_until <= ? AND NOT EXISTS "
            "(SELECT 1 FROM open_traces WHERE open_traces.trace_id = waiting.trace_id) "
            "ORDER BY waits_until, event_id LIMIT ?",
            (clock, limit),
        )
        return [WaitingEvent(*row) for row in rows.fetchall()]

    def settle(self, event: WaitingEvent, fate: Fate) -> None:
        """A waiting event has met its fate."""
        gone = self._db.execute("DELETE FROM waiting WHERE event_id = ?", (event.event_id,))
        self._counted["feedback", "pending"] -= gone.rowcount
        self.count("feedback", fate)

    # Outbox

    def send(self, key: str, record: Record) -> None:
        """Put a record into the outbox, for the log."""
        row = (record.TOPIC, key, encode(record))
        self._db.execute("INSERT INTO outbox (topic, key, value) VALUES (?,?,?)", row)

    def outbox(self, limit: int) -> tuple[int, list[tuple[str, Record]]]:
        """The oldest records to be appended, and the number that `sent` wants for them."""
        rows = self._db.execute(
            "SELECT seq, topic, key, value FROM outbox ORDER BY seq LIMIT ?", (limit,)
        ).fetchall()
        records = [(key, decode(TYPE_BY_TOPIC[topic], value)) for _, topic, key, value in rows]
        return (rows[-1][0] if rows else 0), records

    def sent(self, up_to: int) -> None:
        self._db.execute("DELETE FROM outbox WHERE seq <= ?", (up_to,))
