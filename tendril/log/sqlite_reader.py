"""Reads the embedded log, alone or as a member of a group."""

import math
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tendril.log.protocol import LeaseLost, LogRecord, Offsets, TopicPartition
from tendril.log.sqlite_file import connect, explained, transaction
from tendril.log.sqlite_group import LEASE_S, Membership, sequence_of

POLL_INTERVAL_S = 0.02
MIN_CHUNK = 100
"""Records read at once of one partition, before another one may be further behind."""


class SqliteReader:
    """See `LogReader`. Holds a lease a partition, renewed by polling; one thread at a time."""

    def __init__(self, path: Path, group: str | None, places: Sequence[TopicPartition]) -> None:
        self._path, self._places = path, tuple(places)
        self._membership = None if group is None else Membership(group, places)
        self._connection = connect(path)
        alone = group is None
        self._next: dict[TopicPartition, int] = dict.fromkeys(places, 0) if alone else {}
        self._newest_at: dict[TopicPartition, float] = {}
        self._sought: Offsets = {}  # where to start what is not ours yet
        self._lost: set[TopicPartition] = set()  # since the last commit, come back or not
        self._lease_checked_at = -math.inf

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        deadline = time.monotonic() + timeout_s
        while True:
            batch = self._take(max_records)
            if batch or time.monotonic() >= deadline:
                return batch
            time.sleep(min(POLL_INTERVAL_S, max(0.0, deadline - time.monotonic())))

    def _take(self, max_records: int) -> list[LogRecord]:
        """What was logged first comes first, as far as that is known: topics advance together.

        Of the same moment, in the order in which the topics were named.
        """
        batch: list[LogRecord] = []
        with explained(self._path):
            self._renew_leases()
            reached, newest_at = dict(self._next), dict(self._newest_at)
            left = [place for place in self._places if place in reached]
            chunk = max(MIN_CHUNK, max_records // (4 * max(1, len(left))))
            while left and len(batch) < max_records:
                place = min(left, key=lambda place: newest_at.get(place, 0.0))
                limit = min(chunk, max_records - len(batch))
                rows = self._connection.execute(
                    "SELECT ?, ?, offset, key, value, appended_at FROM records "
                    "WHERE topic=? AND offset>=? ORDER BY offset LIMIT ?",
                    (*place, sequence_of(place), reached[place], limit),
                ).fetchall()
                batch += map(LogRecord._make, rows)
                if rows:
                    reached[place], newest_at[place] = batch[-1].offset + 1, batch[-1].appended_at
                if len(rows) < limit:
                    left.remove(place)
        self._next, self._newest_at = reached, newest_at  # an error half-way passes over nothing
        return batch

    def _renew_leases(self) -> None:
        """Take what the group leaves to this member; forget what others have taken."""
        membership = self._membership
        if membership is None or time.monotonic() - self._lease_checked_at < LEASE_S / 5:
            return
        with transaction(self._connection) as db:
            held = membership.renew(db)
            committed = membership.committed(db)
        kept = {place for place, is_old in held.items() if is_old} & self._next.keys()
        self._lost |= self._next.keys() - kept
        starts = {**committed, **self._sought}
        self._next = {
            place: self._next[place] if place in kept else starts.get(place, 0) for place in held
        }
        self._sought = {place: at for place, at in self._sought.items() if place not in held}
        self._newest_at = {place: at for place, at in self._newest_at.items() if place in kept}
        self._lease_checked_at = time.monotonic()

    def assignment(self) -> frozenset[TopicPartition]:
        with explained(self._path):
            self._renew_leases()
        return frozenset(self._next)

    def positions(self) -> Offsets:
        with explained(self._path):
            self._renew_leases()
        return dict(self._next)

    def commit(self, offsets: Offsets) -> None:
        if self._membership is None:
            raise ValueError("expected a reader with a group, got one without: it cannot commit")
        lost = self._lost & offsets.keys()
        self._lost -= lost  # said once: then the caller has started again
        with explained(self._path), transaction(self._connection) as db:
            for place in offsets:
                if place in lost or not self._membership.holds(db, place):
                    raise LeaseLost(
                        f"group {self._membership.group}: {sequence_of(place)} has another reader"
                    )
            self._membership.commit(db, offsets)
        self._lost.clear()

    def committed(self) -> Offsets:
        if self._membership is None:
            return {}
        with explained(self._path):
            return self._membership.committed(self._connection)

    def seek(self, offsets: Offsets) -> None:
        mine = {place: offset for place, offset in offsets.items() if place in self._next}
        self._next |= mine
        self._newest_at = {place: at for place, at in self._newest_at.items() if place not in mine}
        self._sought = {**self._sought, **{p: at for p, at in offsets.items() if p not in mine}}

    def close(self) -> None:
        if self._membership is not None:
            with suppress(sqlite3.Error):  # the lease ends by itself soon
                self._membership.leave(self._connection)
        self._connection.close()
