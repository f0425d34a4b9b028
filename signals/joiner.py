"""Joins traces with what people did about them, into episodes, effectively once.

All times that decide are the log's (`appended_at`): one clock, whatever clients' clocks say. A
trace is judged at the moments of a `Schedule`, each time by the feedback that had been logged
before, and moments are taken strictly in order. So the same log gives the same episodes in the same
order, whatever the batch sizes, restarts and kills. An episode that was appended just before a kill
can be appended again, with the same id and bytes.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from heapq import merge
from types import MappingProxyType

from signals.asides import Aside
from signals.counts import HOUR_S, KINDS, Fate
from signals.decisions import Decided
from signals.intake import Taken
from signals.looks import Looks, owner_of
from signals.outbox import Outgoing
from signals.releases import Releases
from signals.review import Reviewer
from signals.state import OpenTrace, State, StoredEvent, Tombstone
from signals.trust.cap_state import UNCAPPED, Arrival, Weighed
from tendril.log import LogRecord, Offsets, TopicPartition
from tendril.records import Consent, Episode, Feedback, InvalidRecord, Ledger, Record, Trace, decode
from tendril.settings import TenantConsent, TrustSettings

TOPICS = (Trace.TOPIC, Feedback.TOPIC)
SETTLE_S = 0.5
"""A writer stamps a record before readers can see it; by this much later they can."""
MEMORY_EXTRA_S = 3_600.0
MAX_ORPHANS = 2_000
"""Settled in one transaction, so that none outlasts the reader's lease."""
NO_TENANTS: Mapping[str, TenantConsent] = MappingProxyType({})


def by_time(keyed: tuple[str, Record]) -> tuple[float, str]:
    """When an episode was decided, and about which trace."""
    episode = keyed[1]
    assert isinstance(episode, Episode)
    return episode.closed_at, episode.segments[0].trace_id


class Joiner:
    """Owns one partition's state; `step` again and again, and `take_outgoing` after each."""

    def __init__(
        self,
        state: State,
        reviewer: Reviewer,
        *,
        partition: int = 0,
        tenants: Mapping[str, TenantConsent] = NO_TENANTS,
        decided: Decided | None = None,
        trust: TrustSettings | None = None,
    ) -> None:
        """`decided`: what the log holds of it, kept up to date by who owns the joiner. `trust`:
        None for no caps."""
        self._state, self._schedule = state, reviewer.schedule
        self._places = tuple(TopicPartition(topic, partition) for topic in TOPICS)
        self._memory_s = 2 * self._schedule.window_s + MEMORY_EXTRA_S
        self._consents = state.consents(tenants)
        self._has_consents = False
        decided = Decided() if decided is None else decided
        self._releases = Releases(
            state.held, state.counts, decided.quarantines, user_agrees=self._user_agrees
        )
        self._caps = None if trust is None else state.caps(trust)
        self._looks = Looks(
            state,
            reviewer,
            may_train=self._may_train,
            decided=decided,
            memory_s=self._memory_s,
        )
        self._outgoing: list[Outgoing] = []
        self._logged = state.outbox.logged()

    def offsets(self) -> Offsets:
        """Where to read on: the state's word, not the consumer group's."""
        return dict.fromkeys(self._places, 0) | self._state.offsets()

    def step(
        self, batch: Taken, *, now: float, caught_up: bool, consents: Sequence[LogRecord] = ()
    ) -> bool:
        """Take a batch in and do what is due, in one transaction; True if more is due.

        `now` is the wall clock before the poll, and `caught_up` says that the poll left nothing
        on the log: then every record older than `now` has been seen. `consents`: what users have
        decided since the last step, or more of it. Raises `LogUnavailable`.
        """
        with self._state.change():
            self._state.outbox.note_logged(self._logged)
            self._take_consents(consents)
            fresh = batch.after(self._state.offsets())
            for reach in fresh.progress:
                self._state.advance(reach.place, reach.next_offset, reach.newest_at)
            letters = self._take_invalid(fresh)
            self._take_traces(fresh.traces)
            self._take_feedback(fresh.feedback)
            clock = self._advance_clock(now if caught_up else None)
            until, more, looked = self._looks.take_due(clock)
            more |= self._take_orphans(clock)
            more_freed, freed = self._releases.take_due(until)
            more |= more_freed
            episodes = merge(looked, freed, key=by_time)
            if not more:  # what is open still needs its id remembered, however old it is
                self._state.forget(clock)
            outgoing = self._state.outbox.put([*letters, *episodes])
        self._outgoing += outgoing  # only what was committed
        return more

    def take_outgoing(self) -> list[Outgoing]:
        """What was decided since the last call, in order; it stays in the outbox until `sent`."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def outbox(self, *, after: int, limit: int) -> list[Outgoing]:
        """What an earlier process has left to be sent, from behind number `after` on."""
        return self._state.outbox.waiting(after=after, limit=limit)

    @property
    def logged(self) -> int:
        """The last number that is on the log for sure."""
        return self._logged

    def note_logged(self, up_to: int) -> None:
        """What was decided up to that number is on the log; remembered with the next step."""
        self._logged = up_to

    def sent(self, up_to: int) -> None:
        """What was decided up to that number is where it belongs."""
        with self._state.change():
            self._state.outbox.note_logged(max(up_to, self._logged))
            self._state.outbox.sent(up_to)

    def ledger(self, at: float) -> Ledger:
        """What was read since the state began, and what became of it."""
        counts = self._state.counts.totals()
        read_by_kind = {str(kind): counts[kind].pop("read") for kind in KINDS}
        node = f"partition-{self._places[0].partition}"
        return Ledger(process="signals", node=node, at=at, read=read_by_kind, outcomes=counts)

    def _take_consents(self, records: Sequence[LogRecord]) -> None:
        for record in records:
            with contextlib.suppress(InvalidRecord):  # nobody's decision can be read out of it
                consent = decode(Consent, record.value)
                self._consents.change(consent, offset=record.offset, at=record.appended_at)
        self._has_consents = self._consents.say_something()

    def _may_train(self, trace: Trace, made_at: float, as_of: float) -> bool:
        return self._user_agrees(trace.tenant, trace.user_key, made_at, as_of)

    def _user_agrees(self, tenant: str, user_key: str, made_at: float, as_of: float) -> bool:
        return not self._has_consents or self._consents.allows_training(
            tenant, user_key, made_at=made_at, as_of=as_of
        )

    def _take_invalid(self, batch: Taken) -> list[tuple[str, Record]]:
        """Dead letters for what nobody can read."""
        for record, _ in batch.invalid:
            kind = KINDS[TOPICS.index(record.topic)]
            self._state.counts.read(kind, record.appended_at, "invalid")
        return [(r.key, r.dead_letter(error, r.appended_at)) for r, error in batch.invalid]

    def _take_traces(self, traces: Sequence[tuple[Trace, LogRecord]]) -> None:
        ids = {trace.trace_id for trace, _ in traces}
        known = {*self._state.open_since(ids), *self._state.closed_fates(ids)}
        opened: list[tuple[Trace, LogRecord]] = []
        refused = []
        count = self._state.counts.read
        for trace, record in traces:
            at = record.appended_at
            if trace.trace_id in known:
                count("traces", at, "duplicate")
            elif not trace.train_consent:
                count("traces", at, "opted_out")
                refused.append(Tombstone(trace.trace_id, "opted_out", at + self._memory_s))
            else:
                count("traces", at, "pending")
                opened.append((trace, record))
            known.add(trace.trace_id)
        caps = self._weigh(opened)
        self._state.open_traces(
            [
                self._open(trace, record, cap)
                for (trace, record), cap in zip(opened, caps, strict=True)
            ]
        )
        self._close(refused)

    def _weigh(self, opened: Sequence[tuple[Trace, LogRecord]]) -> list[Weighed]:
        """What the caps leave of each, decided once. What was simulated is nobody's influence."""
        if self._caps is None:
            return [UNCAPPED] * len(opened)
        online = [(trace, record) for trace, record in opened if trace.lane == "online"]
        weighed = iter(self._caps.weigh(
            [Arrival(trace.tenant, trace.user_key, record.appended_at) for trace, record in online]
        ))  # fmt: skip
        return [next(weighed) if trace.lane == "online" else UNCAPPED for trace, _ in opened]

    def _open(self, trace: Trace, record: LogRecord, caps: Weighed) -> OpenTrace:
        """No feedback changes what silence is worth: its end is at once."""
        stage = self._schedule.final_stage if trace.suppressed else 0
        at = record.appended_at
        due_at = at if trace.suppressed else self._schedule.due_at(stage, at)
        return OpenTrace(
            trace.trace_id, at, due_at, stage, 0, None, None, None, 0, *caps, record.value
        )

    def _take_feedback(self, feedback: Sequence[tuple[Feedback, LogRecord]]) -> None:
        """Keep what is about traces that are open or may still come."""
        about = {event.trace_id for event, _ in feedback if event.trace_id is not None}
        fates, opened = self._state.closed_fates(about), self._state.open_since(about)
        kept: dict[int, list[StoredEvent]] = {}
        for event, record in feedback:
            at = record.appended_at
            if event.trace_id is None:
                self._take_aside(event, record)
            elif fate := fates.get(event.trace_id) or self._too_late(
                at, opened.get(event.trace_id)
            ):
                self._state.counts.read("feedback", at, fate)
            else:
                stored = StoredEvent(event.trace_id, event.event_id, at, record.value)
                kept.setdefault(int(at // HOUR_S), []).append(stored)
        for events in kept.values():
            num_new = self._state.add_events(events)
            count, at = self._state.counts.read, events[0].appended_at
            count("feedback", at, "pending", num_new)
            count("feedback", at, "duplicate", len(events) - num_new)
        self._claim(
            event for events in kept.values() for event in events if event.trace_id not in opened
        )

    def _too_late(self, at: float, opened: tuple[float, float] | None) -> Fate | None:
        """What an event logged `at` meets where its trace, still open here, is over by then."""
        if opened is None:
            return None
        appended_at, due_at = opened
        if due_at == appended_at:  # silence
            return "invalid" if at >= appended_at else None
        ends_at = self._schedule.due_at(self._schedule.final_stage + 1, appended_at)
        return "late" if at >= ends_at else None

    def _claim(self, events: Iterable[StoredEvent]) -> None:
        """Those whose trace has not come wait for it as long as a trace waits for feedback."""
        due_at: dict[str, float] = {}
        for event in events:
            due_at.setdefault(event.trace_id, event.appended_at + self._schedule.window_s)
        self._state.claim_later(due_at)

    def _take_aside(self, event: Feedback, record: LogRecord) -> None:
        """Clients make ids unique within a trace, else within what the event is about."""
        at, owner = record.appended_at, owner_of(event.session_id, event.user_key)
        skew_s = event.ingested_at - event.client_time if event.type == "heartbeat" else None
        is_new = self._state.asides.put(
            Aside(owner, event.event_id, at + self._memory_s, at, skew_s)
        )
        self._state.counts.read("feedback", at, "no_trace" if is_new else "duplicate")

    def _advance_clock(self, now: float | None) -> float:
        """The moment up to which every record has been seen; it never goes back."""
        newest_at = dict.fromkeys(self._places, 0.0) | self._state.newest_at()
        seen_until = min(newest_at.values())
        if now is not None:
            seen_until = max(seen_until, now - SETTLE_S)
        clock = max(self._state.clock(), seen_until)
        self._state.set_clock(clock)
        return clock

    def _take_orphans(self, clock: float) -> bool:
        """Feedback whose trace did not come in time; whether there is more."""
        trace_ids = self._state.unclaimed(clock, MAX_ORPHANS)
        stored = self._state.events_of(trace_ids)
        for trace_id in trace_ids:
            due_at = {
                event: event.appended_at + self._schedule.window_s
                for event in stored.get(trace_id, ())
            }
            orphans = [event for event, at in due_at.items() if at <= clock]
            for event in orphans:
                self._state.counts.settle("feedback", event.appended_at, "orphan")
            self._state.drop_events(orphans)
            self._state.give_up(
                trace_id, min((at for at in due_at.values() if at > clock), default=None)
            )
        return len(trace_ids) == MAX_ORPHANS

    def _close(self, tombstones: Sequence[Tombstone]) -> None:
        """Close traces; events of theirs that are kept meet the tombstone's fate."""
        fates = {tombstone.trace_id: tombstone.fate for tombstone in tombstones}
        for events in self._state.events_of(fates).values():
            for event in events:
                self._state.counts.settle("feedback", event.appended_at, fates[event.trace_id])
        self._state.close_traces(tombstones)
