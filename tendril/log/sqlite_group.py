"""Groups of readers of the embedded log: who holds which partition, by leases that run out.

A member says that it is there with each renewal, takes what is free of its fair share, and gives up
what is above it. Partitions of one number go together, as members of a group read the same topics.
"""

import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Sequence

from tendril.log.partitions import share_out
from tendril.log.protocol import Offsets, TopicPartition

LEASE_S = 5.0


def sequence_of(place: TopicPartition) -> str:
    """How a partition is named in the file: `traces`, `traces/1`, `traces/2`."""
    return place.topic if place.partition == 0 else f"{place.topic}/{place.partition}"


class Membership:
    """One reader's part in its group. Methods run inside the caller's transaction."""

    def __init__(self, group: str, places: Sequence[TopicPartition]) -> None:
        self.group = group
        self._member = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._places: dict[str, dict[int, TopicPartition]] = {}
        for place in places:
            self._places.setdefault(place.topic, {})[place.partition] = place

    def renew(self, db: sqlite3.Connection) -> dict[TopicPartition, bool]:
        """Say that this member lives; what it holds from now on, and whether it did all the while.

        A lease that has run out is still its owner's where nobody took the partition since.
        """
        now = time.time()  # after the wait for other writers: no lease seen here is newer
        held: dict[TopicPartition, bool] = {}
        for topic, places in self._places.items():
            owners = self._owners(db, places.values(), now)
            members = sorted({*self._living(db, topic, now), *owners.values()})
            owned = {
                name: frozenset(n for n, place in places.items() if owners.get(place) == name)
                for name in members
            }
            mine = share_out(list(places), members, owned)[self._member]
            for number, place in places.items():
                owner = owners.get(place)
                if number in mine and owner in (None, self._member):
                    held[place] = self.holds(db, place)
                    self._take(db, place, now)
                elif owner == self._member:
                    self._drop(db, place)
        return held

    def _living(self, db: sqlite3.Connection, topic: str, now: float) -> list[str]:
        """The members of the group that read this topic, this one included."""
        db.execute(
            "INSERT OR REPLACE INTO members VALUES (?,?,?,?)",
            (self.group, topic, self._member, now + LEASE_S),
        )
        # One that ends later than any can was written before the clock was set back.
        db.execute(
            "DELETE FROM members WHERE consumer_group=? AND topic=? AND NOT until BETWEEN ? AND ?",
            (self.group, topic, now, now + LEASE_S),
        )
        rows = db.execute(
            "SELECT member FROM members WHERE consumer_group=? AND topic=?", (self.group, topic)
        )
        return [member for (member,) in rows.fetchall()]

    def _owners(
        self, db: sqlite3.Connection, places: Iterable[TopicPartition], now: float
    ) -> dict[TopicPartition, str]:
        """By partition, who has a lease that still holds."""
        rows = db.execute(
            "SELECT topic, owner FROM leases WHERE consumer_group=? AND until BETWEEN ? AND ?",
            (self.group, now, now + LEASE_S),
        )
        owners = dict(rows.fetchall())
        return {place: owners[name] for place in places if (name := sequence_of(place)) in owners}

    def _take(self, db: sqlite3.Connection, place: TopicPartition, now: float) -> None:
        db.execute(
            "INSERT OR REPLACE INTO leases VALUES (?,?,?,?)",
            (self.group, sequence_of(place), self._member, now + LEASE_S),
        )

    def _drop(self, db: sqlite3.Connection, place: TopicPartition) -> None:
        db.execute(
            "DELETE FROM leases WHERE consumer_group=? AND topic=? AND owner=?",
            (self.group, sequence_of(place), self._member),
        )

    def holds(self, db: sqlite3.Connection, place: TopicPartition) -> bool:
        """Whether nobody else has taken the partition."""
        row = db.execute(
            "SELECT owner FROM leases WHERE consumer_group=? AND topic=?",
            (self.group, sequence_of(place)),
        ).fetchone()
        return row is not None and row[0] == self._member

    def commit(self, db: sqlite3.Connection, offsets: Offsets) -> None:
        db.executemany(
            "INSERT OR REPLACE INTO committed VALUES (?,?,?)",
            [(self.group, sequence_of(place), offset) for place, offset in offsets.items()],
        )

    def committed(self, db: sqlite3.Connection) -> dict[TopicPartition, int]:
        """What the group has committed, for this reader's topics."""
        rows = db.execute(
            "SELECT topic, offset FROM committed WHERE consumer_group=?", (self.group,)
        )
        found = dict(rows.fetchall())
        return {
            place: found[name]
            for places in self._places.values()
            for place in places.values()
            if (name := sequence_of(place)) in found
        }

    def leave(self, db: sqlite3.Connection) -> None:
        """Others may take over at once."""
        db.execute("DELETE FROM leases WHERE owner=?", (self._member,))
        db.execute("DELETE FROM members WHERE member=?", (self._member,))
