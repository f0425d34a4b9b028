"""Hears what users say next, and puts its class on the log: the words stay where they are."""

from pathlib import Path

import msgspec

from signals.followup.event import followed_up
from signals.turns import TurnReader
from tendril.files import write_whole
from tendril.log import EventLog

LAST_SEQ = 1_000_000_000
"""Behind whatever a client has counted to: a follow-up comes after all that was done to a reply."""


class Progress(msgspec.Struct, frozen=True):
    """By partition of `traces`, where it goes on."""

    offsets: dict[int, int] = {}


class Annotator:
    """Follows the lake's conversations; `path` remembers how far."""

    def __init__(self, log: EventLog, turns: TurnReader, path: Path) -> None:
        self._log, self._turns, self._path = log, turns, path

    def look(self, now: float) -> int:
        """Classify what is new; returns the number of events. A kill repeats some, by their ids.

        Raises `LogUnavailable`, `LakeUnavailable`.
        """
        before = self._progress()
        turns, reached = self._turns.logged_from(before.offsets, now)
        made = [
            followed_up(
                turn.before, turn.after, request=turn.request, reply=turn.reply,
                followup=turn.follow_up, client_seq=LAST_SEQ + turn.after.turn,
            )
            for turn in turns
        ]  # fmt: skip
        events = [event for event in made if event is not None]
        if events:
            self._log.append([(event.session_id, event) for event in events])
        if reached != before.offsets:
            progress = Progress(dict(sorted(reached.items())))
            write_whole(self._path, msgspec.json.encode(progress))
        return len(events)

    def _progress(self) -> Progress:
        """From the beginning where there is no file: repeats are dropped by their ids."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Progress)
        except (FileNotFoundError, msgspec.DecodeError):
            return Progress()
