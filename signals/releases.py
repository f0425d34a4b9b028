"""Lets episodes go on that a quarantine kept back after their last look, once nothing holds them.

A trace that is still looked at needs none of this: its next look finds it free.
"""

from collections.abc import Callable

import msgspec

from signals.counts import Counts
from signals.episode import revision_id
from signals.held import MAX_FREED, Freed, Held
from tendril.quarantine import Quarantines
from tendril.records import Episode, Record

UserAgrees = Callable[[str, str, float, float], bool]
"""(tenant, user key, logged at, as of): whether the user has agreed to learning."""


class Releases:
    """What is free in one partition's state. Called inside its transaction."""

    def __init__(
        self, held: Held, counts: Counts, quarantines: Quarantines, *, user_agrees: UserAgrees
    ) -> None:
        self._held, self._counts, self._quarantines = held, counts, quarantines
        self._user_agrees = user_agrees
        self._num_considered = 0

    def take_due(self, clock: float) -> tuple[bool, list[tuple[str, Record]]]:
        """Free by `clock`; whether more are, and the new revisions, each with its key."""
        if self._num_considered != self._quarantines.num_taken:
            self._held.reconsider(self._quarantines)
            self._num_considered = self._quarantines.num_taken
        due = self._held.freed(clock)
        episodes: list[tuple[str, Record]] = []
        for freed in due:
            held, at = freed.episode, freed.appended_at
            if self._user_agrees(held.tenant, held.user_key, at, freed.free_at):
                episodes.append((held.session_id, freed_revision(freed)))
                self._counts.move("traces", at, "quarantined", "joined")
            else:
                self._counts.move("traces", at, "quarantined", "opted_out")
        self._held.drop([freed.episode.segments[0].trace_id for freed in due])
        return len(due) == MAX_FREED, episodes


def freed_revision(freed: Freed) -> Episode:
    """The episode again, as its next revision, held by nothing."""
    held = freed.episode
    revision = held.revision + 1
    return msgspec.structs.replace(
        held,
        episode_id=revision_id(held.segments[0].trace_id, held.recipe_digest, revision),
        revision=revision,
        supersedes=held.episode_id,
        closed_at=freed.free_at,
        quarantine_ids=(),
    )
