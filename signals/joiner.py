"""Joins traces with what people did about them, into episodes, effectively once.

All times that decide are the log's (`appended_at`): one clock, whatever clients' clocks say. A
trace closes `feedback_window_s` after it was logged; feedback belongs to it if it was logged before
that, and waits as long for a trace that comes later. So the same log gives the same episodes,
whatever the batch sizes, restarts and kills. An episode that was appended just before a kill
can be appended again, with the same id and bytes.
"""

from collections.abc import Sequence

from signals.episode import build_episode, is_held_out
from signals.intake import read
from signals.judge import Judgement, judge
from signals.recipe import Recipe
from signals.state import KINDS, Fate, OpenTrace, State, WaitingEvent
from tendril.log import EventLog, LogRecord, Offsets, TopicPartition
from tendril.records import Feedback, InvalidRecord, Ledger, Record, Trace, decode

TOPICS = (Trace.TOPIC, Feedback.TOPIC)
SETTLE_S = 0.5
"""A writer stamps a record before readers can see it; by this much later they can."""
MEMORY_EXTRA_S = 3_600.0
MAX_CLOSED = 1_000
"""Traces and orphans settled in one transaction, so that none outlasts the reader's lease."""
MAX_SENT = 500


class Joiner:
    """Owns the state file's contents; `step`, then `publish`, again and again."""

    def __init__(
        self, state: State, recipe: Recipe, *, feedback_window_s: float, held_out_share: float
    ) -> None:
        self._state = state
        self._recipe, self._recipe_digest = recipe, recipe.digest
        self._window_s = feedback_window_s
        self._memory_s = 2 * feedback_window_s + MEMORY_EXTRA_S
        self._held_out_share = held_out_share

    def offsets(self) -> Offsets:
        """Where to read on: the state's word, not the consumer group's."""
        return {TopicPartition(topic, 0): 0 for topic in TOPICS} | self._state.offsets()

    def step(self, records: Sequence[LogRecord], *, now: float, caught_up: bool) -> bool:
        """Take records in and close what is due, in one transaction; True if more is due.

        `now` is the wall clock before the poll, and `caught_up` says that the poll left nothing
        on the log: then every record older than `now` has been seen. Raises `LogUnavailable`.
        """
        with self._state.change():
            start = self._state.offsets()
            for record in sorted(records, key=_log_time):
                if record.offset >= start.get(TopicPartition(record.topic, record.partition), 0):
                    self._take(record)
            clock = self._advance_clock(now if caught_up else None)
            more = self._close_due(clock)
            if not more:  # what is open still needs its id remembered, however old it is
                self._state.forget(clock)
        return more

    def publish(self, log: EventLog) -> list[Record]:
        """Append the outbox to the log, then empty it; returns it. Raises `LogUnavailable`."""
        published: list[Record] = []
        while True:
            up_to, records = self._state.outbox(MAX_SENT)
            if not records:
                return published
            log.append(records)
            with self._state.change():
                self._state.sent(up_to)
            published += [record for _, record in records]

    def ledger(self, at: float) -> Ledger:
        """What was read since the state began, and what became of it."""
        counts = self._state.counts()
        read_by_kind = {kind: counts[kind].pop("read") for kind in KINDS}
        return Ledger(
            process="signals",
            at=at,
            read={str(kind): n for kind, n in read_by_kind.items()},
            outcomes=counts,
        )

    def _take(self, record: LogRecord) -> None:
        kind = KINDS[TOPICS.index(record.topic)]
        self._state.advance(record)
        self._state.count(kind, "read")
        try:
            content = read(record)
        except InvalidRecord as error:
            self._state.count(kind, "invalid")
            self._state.send(record.key, record.dead_letter(error, record.appended_at))
            return
        if isinstance(content, Trace):
            self._take_trace(content, record)
        elif isinstance(content, Feedback):
            self._take_feedback(content, record)

    def _take_trace(self, trace: Trace, record: LogRecord) -> None:
        appended_at = record.appended_at
        if not self._state.is_new("traces", trace.trace_id, forget_at=appended_at + self._memory_s):
            self._state.count("traces", "duplicate")
        elif not trace.train_consent:
            self._state.count("traces", "opted_out")
            self._close_at_once(trace, appended_at, "opted_out")
        elif trace.suppressed:
            self._emit(trace, judge(self._recipe, trace, (), window_closed=True), appended_at)
            self._close_at_once(trace, appended_at, "invalid")
        else:
            closes_at = appended_at + self._window_s
            self._state.open_trace(OpenTrace(trace.trace_id, appended_at, closes_at, record.value))

    def _take_feedback(self, event: Feedback, record: LogRecord) -> None:
        appended_at = record.appended_at
        # Clients make ids unique within a trace, else within what the event is about.
        owner = event.trace_id or f"{event.session_id}/{event.user_key}"
        event_id = f"{owner}/{event.event_id}"
        if not self._state.is_new("feedback", event_id, forget_at=appended_at + self._memory_s):
            self._state.count("feedback", "duplicate")
        elif event.trace_id is None:
            self._state.count("feedback", "no_trace")
        elif fate := self._state.fate_of_later(event.trace_id):
            self._state.count("feedback", fate)
        else:
            waits_until = appended_at + self._window_s
            self._state.wait(
                WaitingEvent(event_id, event.trace_id, appended_at, waits_until, record.value)
            )

    def _close_at_once(self, trace: Trace, at: float, fate: Fate) -> None:
        """Close a trace that no feedback can change; feedback, early or late, meets `fate`."""
        self._state.close_trace(trace.trace_id, fate_of_later=fate, forget_at=at + self._memory_s)
        for event in self._state.waiting_for(trace.trace_id):
            self._state.settle(event, fate)

    def _advance_clock(self, now: float | None) -> float:
        """The moment up to which every record has been seen; it never goes back."""
        newest_at = {TopicPartition(topic, 0): 0.0 for topic in TOPICS} | self._state.newest_at()
        seen_until = min(newest_at.values())
        if now is not None:
            seen_until = max(seen_until, now - SETTLE_S)
        clock = max(self._state.clock(), seen_until)
        self._state.set_clock(clock)
        return clock

    def _close_due(self, clock: float) -> bool:
        due = self._state.due(clock, MAX_CLOSED)
        for trace in due:
            self._close(trace)
        if len(due) == MAX_CLOSED:
            return True
        orphans = self._state.waiting_in_vain(clock, MAX_CLOSED)
        for event in orphans:
            self._state.settle(event, "orphan")
        return len(orphans) == MAX_CLOSED

    def _close(self, opened: OpenTrace) -> None:
        trace = decode(Trace, opened.value)
        usable: list[tuple[WaitingEvent, Feedback]] = []
        for waiting in self._state.waiting_for(opened.trace_id):
            event = decode(Feedback, waiting.value)
            fate = _misfortune(waiting, event, opened, trace)
            if fate:
                self._state.settle(waiting, fate)
            else:
                usable.append((waiting, event))
        judgement = judge(self._recipe, trace, [event for _, event in usable], window_closed=True)
        for waiting, event in usable:
            invalid = event.event_id in judgement.invalid_event_ids
            self._state.settle(waiting, "invalid" if invalid else "joined")
        self._emit(trace, judgement, opened.closes_at)
        forget_at = opened.closes_at + self._memory_s
        self._state.close_trace(opened.trace_id, fate_of_later="late", forget_at=forget_at)

    def _emit(self, trace: Trace, judgement: Judgement, closed_at: float) -> None:
        self._state.count("traces", "joined")
        episode = build_episode(
            trace,
            judgement,
            recipe_digest=self._recipe_digest,
            closed_at=closed_at,
            held_out=is_held_out(trace.session_id, self._held_out_share),
        )
        self._state.send(trace.session_id, episode)


def _log_time(record: LogRecord) -> tuple[float, str, int, int]:
    return record.appended_at, record.topic, record.partition, record.offset


def _misfortune(
    waiting: WaitingEvent, event: Feedback, opened: OpenTrace, trace: Trace
) -> Fate | None:
    """Why an event that names the trace does not count for it; None if it does."""
    if waiting.appended_at >= opened.closes_at:
        return "late"
    if waiting.waits_until <= opened.appended_at:
        return "orphan"
    if (event.session_id, event.tenant) != (trace.session_id, trace.tenant):
        return "invalid"
    return None
