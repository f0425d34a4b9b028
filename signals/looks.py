"""Looks at open traces when their moments come, strictly in the order of time.

Each look makes at most one episode. The end of the window settles what a trace and its feedback
came to; a last look, when latecomers may have been logged, can still revise the episode.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from signals.counts import Fate
from signals.decisions import Decided
from signals.review import Reviewer, Verdict
from signals.state import OpenTrace, State, StoredEvent, Tombstone
from tendril.records import Record, Trace, decode

MAX_DUE = 2_000
"""Traces looked at in one transaction, so that none outlasts the reader's lease."""
LAST_ID = "\U0010ffff"

MayTrain = Callable[[Trace, float, float], bool]
"""(trace, logged at, as of): whether its user has agreed to learning from it."""
Keyed = tuple[str, Record]


class Taken(NamedTuple):
    """What was due."""

    until: float
    """All looks before that moment were taken."""
    more: bool
    episodes: list[Keyed]


class Looks:
    """What is due in one partition's state. Called inside its transaction."""

    def __init__(
        self,
        state: State,
        reviewer: Reviewer,
        *,
        may_train: MayTrain,
        decided: Decided,
        memory_s: float,
    ) -> None:
        self._state, self._reviewer, self._schedule = state, reviewer, reviewer.schedule
        self._may_train, self._memory_s = may_train, memory_s
        self._decided = decided
        self._has_heartbeats = False

    def take_due(self, clock: float) -> Taken:
        """Looks due by `clock`."""
        due = [
            (opened.due_at, opened.trace_id, opened) for opened in self._state.due(clock, MAX_DUE)
        ]
        if not due:
            return Taken(clock, False, [])
        is_full = len(due) == MAX_DUE
        horizon = due[-1][:2] if is_full else (clock, LAST_ID)
        self._has_heartbeats = self._state.asides.has_heartbeats()
        stored = self._state.events_of([trace_id for _, trace_id, _ in due])
        waiting: dict[str, OpenTrace] = {}
        closed: list[Tombstone] = []
        episodes: list[Keyed] = []
        while due:  # sorted, so it is a heap
            _, trace_id, opened = heapq.heappop(due)
            after = self._look(opened, stored.get(trace_id, ()), episodes)
            if isinstance(after, Tombstone):
                waiting.pop(trace_id, None)
                closed.append(after)
                continue
            waiting[trace_id] = after
            if (after.due_at, trace_id) <= horizon:
                heapq.heappush(due, (after.due_at, trace_id, after))
        self._state.put_back(waiting.values())
        self._state.close_traces(closed)
        return Taken(horizon[0], is_full, episodes)

    def _look(
        self, opened: OpenTrace, stored: Sequence[StoredEvent], episodes: list[Keyed]
    ) -> OpenTrace | Tombstone:
        """One look at one trace, its episode added: the trace as it waits on, or is remembered."""
        final = self._schedule.final_stage
        events = [event for event in stored if event.appended_at < opened.due_at]
        if opened.stage < final and not events:
            return self._next(opened)
        if opened.stage > final and not self._has_news(opened, events):
            return self._close(opened, stored, "late")
        trace = decode(Trace, opened.value)
        if not self._may_train(trace, opened.appended_at, opened.due_at):
            return self._close(opened, stored, "opted_out")
        verdict = self._reviewer.review(
            opened, trace, events, self._skews_s(trace, opened, events), self._decided
        )
        if opened.stage >= final:
            opened = self._settle(opened, verdict)
        if (episode := verdict.episode) is not None:
            episodes.append((episode.session_id, episode))
            opened = opened._replace(
                revision=opened.revision + 1, episode_id=episode.episode_id, judged=verdict.judged
            )
        if trace.suppressed:
            return self._close(opened, stored, "invalid")
        is_over = opened.stage > final or (opened.is_settled and self._schedule.lateness_s == 0)
        return self._close(opened, stored, "late") if is_over else self._next(opened)

    def _has_news(self, opened: OpenTrace, events: Sequence[StoredEvent]) -> bool:
        """Latecomers, or a quarantine that has come or gone since: else the end has said all."""
        if len(events) > opened.num_settled:
            return True
        if not self._decided.quarantines.num_taken:
            return False
        trace = decode(Trace, opened.value)
        is_held = self._reviewer.is_held(opened, trace, events, self._decided)
        return is_held != (opened.fate == "quarantined")

    def _next(self, opened: OpenTrace) -> OpenTrace:
        stage = opened.stage + 1
        due_at = self._schedule.due_at(stage, opened.appended_at)
        return opened._replace(stage=stage, due_at=due_at)

    def _skews_s(
        self, trace: Trace, opened: OpenTrace, events: Sequence[StoredEvent]
    ) -> Sequence[float]:
        if not events or not self._has_heartbeats:
            return ()
        owner = owner_of(trace.session_id, trace.user_key)
        return self._state.asides.heartbeat_skews_s(owner, before=opened.due_at)

    def _settle(self, opened: OpenTrace, verdict: Verdict) -> OpenTrace:
        """Count what the end of the window, or the look at latecomers, has decided.

        A quarantine holds the trace; that feedback belongs to it is true all the same.
        """
        settle, fates = self._state.counts.settle, verdict.fates
        kept_as: Fate = "quarantined" if verdict.is_held else "joined"
        if verdict.episode is not None and verdict.is_held:
            self._state.held.keep(opened.appended_at, verdict.episode, self._decided.quarantines)
        elif opened.fate == "quarantined" and not verdict.is_held:
            self._state.held.drop([opened.trace_id])
        ended_at = self._schedule.due_at(self._schedule.final_stage, opened.appended_at)
        for event, fate in fates:
            if not opened.is_settled or event.appended_at >= ended_at:
                settle("feedback", event.appended_at, fate)
        if opened.fate is None:
            settle("traces", opened.appended_at, kept_as)
        elif opened.fate != kept_as:
            self._state.counts.move("traces", opened.appended_at, opened.fate, kept_as)
        return opened._replace(fate=kept_as, num_settled=len(fates))

    def _close(self, opened: OpenTrace, stored: Sequence[StoredEvent], fate: Fate) -> Tombstone:
        """The trace is over; what of it is not counted yet, and what comes later, meets `fate`."""
        settle = self._state.counts.settle
        ordered = sorted(stored, key=lambda event: (event.appended_at, event.event_id))
        for event in ordered[opened.num_settled :]:
            settle("feedback", event.appended_at, fate)
        if not opened.is_settled:
            settle("traces", opened.appended_at, fate)
        return Tombstone(opened.trace_id, fate, opened.due_at + self._memory_s)


def owner_of(session_id: str, user_key: str) -> str:
    """Whom feedback without a trace is about."""
    return f"{session_id}/{user_key}"
