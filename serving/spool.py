"""Records on their way to the event log: durable before the client hears of them.

A record is written to the node's own SQLite file first, and a thread moves it to the log. So the
gateway never waits for the log, a killed process loses nothing, and at every moment
accepted = logged + spooled, beside what was refused (with the reason). A crash between append and
delete appends a record twice; readers drop repeats by its id.
"""

import contextlib
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tendril.log import EventLog, LogUnavailable
from tendril.log.sqlite_file import connect, explained, transaction
from tendril.records import (
    TYPE_BY_TOPIC,
    DeadLetter,
    Feedback,
    InvalidRecord,
    Ledger,
    Record,
    Trace,
    decode,
    encode,
)

log = logging.getLogger(__name__)

BATCH_RECORDS = 500
RETRY_S = 1.0
GATHER_S = 0.05
SCHEMA = """
CREATE TABLE IF NOT EXISTS spool (
    position INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key TEXT NOT NULL,
    value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS counts (
    topic TEXT NOT NULL, what TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (topic, what));
CREATE TABLE IF NOT EXISTS seen (
    event_id TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
"""


class SpoolFull(RuntimeError):
    """The log is away and the spool has reached its limit: refuse with 503."""


class Spool:
    """See the module. `put` may be called from any thread."""

    def __init__(
        self, path: Path, event_log: EventLog, max_records: int, *, node: str = ""
    ) -> None:
        self._path, self._event_log, self._max_records = path, event_log, max_records
        self._node = node
        self._lock = threading.Lock()
        self._db = connect(path)
        with self._guarded():
            self._db.executescript(SCHEMA)
            depth: int = self._db.execute("SELECT COUNT(*) FROM spool").fetchone()[0]
        self._depth = depth
        self._arrived = threading.Event()
        self._closed = threading.Event()
        self._is_refusing = False
        self._uncounted: Counter[tuple[str, str]] = Counter()
        self._thread = threading.Thread(target=self._drain, name="spool", daemon=True)
        self._thread.start()

    def put(
        self,
        key: str,
        record: Record,
        *,
        event_id: str | None = None,
        also: Sequence[tuple[str, Record]] = (),
    ) -> bool:
        """Durable on return, with `also` what follows from it. False where `event_id` was put
        before: nothing is written twice.

        Raises `SpoolFull` (counted as refused), or `LogUnavailable` where the disk refuses.
        """
        try:
            with self._guarded():
                with transaction(self._db) as db:
                    is_new = self._insert(db, key, record, event_id)
                    for other_key, other in also if is_new else ():
                        self._add_row(db, other_key, other)
                self._depth += is_new * (1 + len(also))
        except SpoolFull:
            self.refuse(record.TOPIC, "spool full")
            raise
        except LogUnavailable:
            self._is_refusing = True
            self._uncounted[record.TOPIC, "refused: disk"] += 1
            raise
        self._is_refusing = False
        self._arrived.set()
        return is_new

    def _insert(
        self, db: sqlite3.Connection, key: str, record: Record, event_id: str | None
    ) -> bool:
        if event_id is not None and not self._remember(db, event_id):
            self._add(db, record.TOPIC, "duplicate")
            return False
        if self.is_full:
            raise SpoolFull(f"{self._depth} records wait for the log, limit {self._max_records}")
        self._add_row(db, key, record)
        self._add(db, record.TOPIC, "accepted")
        return True

    def _add_row(self, db: sqlite3.Connection, key: str, record: Record) -> None:
        row = (record.TOPIC, key, encode(record))
        db.execute("INSERT INTO spool (topic, key, value) VALUES (?,?,?)", row)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """One thread at a time in the database; its refusals become `LogUnavailable`."""
        with self._lock, explained(self._path):
            yield

    def _remember(self, db: sqlite3.Connection, event_id: str) -> bool:
        row = db.execute("INSERT OR IGNORE INTO seen VALUES (?,?)", (event_id, time.time()))
        return row.rowcount == 1

    def refuse(self, topic: str, reason: str) -> None:
        """Count something that was not accepted."""
        with self._guarded(), transaction(self._db) as db:
            self._add(db, topic, f"refused: {reason}")

    def _add(self, db: sqlite3.Connection, topic: str, what: str, count: int = 1) -> None:
        db.execute(
            "INSERT INTO counts VALUES (?,?,?) ON CONFLICT DO UPDATE SET count=count+?",
            (topic, what, count, count),
        )

    @property
    def depth(self) -> int:
        """Records that wait for the log."""
        return self._depth

    @property
    def is_full(self) -> bool:
        """Whether the next record would be refused."""
        return self._depth >= self._max_records

    @property
    def is_refusing(self) -> bool:
        """Whether the disk took no record the last time; it is tried again every second."""
        return self._is_refusing

    def _try_disk(self) -> None:
        """Write down what could not be counted; where that works, records are taken again."""
        with contextlib.suppress(LogUnavailable), self._guarded(), transaction(self._db) as db:
            for (topic, what), count in self._uncounted.items():
                self._add(db, topic, what, count)
            self._uncounted.clear()
            self._is_refusing = False

    def forget_seen(self, before: float) -> None:
        """Drop event ids older than `before`: their tokens have expired, so none can return."""
        with self._guarded(), transaction(self._db) as db:
            db.execute("DELETE FROM seen WHERE at<?", (before,))

    def ledger(self, now: float) -> Ledger:
        """Accepted and refused, and where the accepted ones are."""
        with self._guarded():
            counts = {(t, w): n for t, w, n in self._db.execute("SELECT * FROM counts")}
            spooled = dict(self._db.execute("SELECT topic, COUNT(*) FROM spool GROUP BY topic"))
        read: dict[str, int] = {}
        outcomes: dict[str, dict[str, int]] = {}
        for topic in (Trace.TOPIC, Feedback.TOPIC):
            mine = {what: n for (t, what), n in counts.items() if t == topic}
            accepted = mine.pop("accepted", 0)
            waiting = spooled.get(topic, 0)
            read[topic] = accepted + sum(mine.values())
            outcomes[topic] = {"logged": accepted - waiting, "spooled": waiting, **mine}
        return Ledger(process="serving", node=self._node, at=now, read=read, outcomes=outcomes)

    def _drain(self) -> None:
        while True:
            try:
                moved = self._move_batch()
            except LogUnavailable as error:
                log.warning("the event log is away, %d records wait: %s", self._depth, error)
                moved = False
                self._closed.wait(RETRY_S)
            except Exception:  # the thread's outermost loop: a dead one would hold all records back
                log.exception("%d records wait", self._depth)
                moved = False
                self._closed.wait(RETRY_S)
            if self._is_refusing:
                self._try_disk()
            if not moved and self._closed.is_set():
                return
            if not moved:
                self._arrived.wait(timeout=0.5)
            self._arrived.clear()
            self._closed.wait(GATHER_S)  # few large batches: a put must not wait for each other one

    def _move_batch(self) -> bool:
        """Move what is there to the log; True where something was moved."""
        with self._guarded():
            rows = self._db.execute(
                "SELECT position, topic, key, value FROM spool ORDER BY position LIMIT ?",
                (BATCH_RECORDS,),
            ).fetchall()
        if not rows:
            return False
        self._event_log.append(
            [(str(key), _readable(topic, value)) for _, topic, key, value in rows]
        )
        with self._guarded():
            with transaction(self._db) as db:
                db.execute("DELETE FROM spool WHERE position<=?", (rows[-1][0],))
            self._depth -= len(rows)
        return True

    def flush(self) -> None:
        """Move what can be moved and stop moving; what is left waits for the next start."""
        self._closed.set()
        self._arrived.set()
        self._thread.join(timeout=10)

    def close(self) -> None:
        """`flush`, then let go of the file."""
        self.flush()
        with self._lock:
            self._db.close()


def _readable(topic: str, value: bytes) -> Record:
    """The record, or a dead letter: one that nobody can read must not hold up those behind it."""
    try:
        if topic not in TYPE_BY_TOPIC:
            raise InvalidRecord(f"no topic {topic!r}: the row is damaged")
        return decode(TYPE_BY_TOPIC[topic], value)
    except InvalidRecord as error:
        return DeadLetter(topic=str(topic), reason=str(error), value=value, at=time.time())
