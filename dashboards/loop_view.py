"""The loop as a person sees it: one fold over the event log, read by every display.

Repeats (same trace, event or episode id) are counted once, as long as the first is among the
newest `MAX_IDS` of its kind. A revised episode replaces the one that it supersedes.
"""

import math
import time
from collections import Counter
from collections.abc import Callable

from dashboards.bounded import Curve, Recent, RecentCount
from dashboards.health import Limits, StageName, health_of, stages_of
from dashboards.nodes import NodeBook
from dashboards.snapshot import (
    Curves,
    LedgerLine,
    LoopSnapshot,
    Traffic,
)
from dashboards.spread import spread_of
from dashboards.tally import EpisodeFacts, Rates, Tally, facts_of
from dashboards.versions import VersionBook
from tendril.records import (
    DeadLetter,
    Episode,
    Feedback,
    Ledger,
    NodeStatus,
    PolicyManifest,
    Record,
    Release,
    Trace,
)

MAX_IDS = 100_000
RATE_WINDOW_S = 10
FAILURE_WINDOW_S = 300


class LoopView:
    """Add records in log order, take a snapshot at any moment. Not thread-safe."""

    def __init__(self, limits: Limits | None = None, now: Callable[[], float] = time.time) -> None:
        self._limits, self._now = limits or Limits(), now
        self._total, self._curve, self._versions = Tally(), Curve(), VersionBook()
        self._shown_until = -math.inf  # when the newest judged suggestion had been served
        self._decisions, self._failures = RecentCount(RATE_WINDOW_S), RecentCount(FAILURE_WINDOW_S)
        self._traces: Recent[None] = Recent(MAX_IDS)
        self._events: Recent[None] = Recent(MAX_IDS)
        self._episodes: Recent[EpisodeFacts] = Recent(MAX_IDS)
        self._counts: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._untrainable: Counter[str] = Counter()
        self._repeats: Counter[str] = Counter()
        self._newest_at: dict[StageName, float | None] = dict.fromkeys(
            ("request", "feedback", "episode", "trained", "live")
        )
        self._nodes = NodeBook()
        self._ledgers: dict[tuple[str, str], Ledger] = {}
        self._newest_version: int | None = None
        self._log_at: float | None = None

    def add(self, record: Record, appended_at: float) -> None:
        """Fold in one record; only records of one topic need to come in order."""
        self._log_at = max(self._log_at or appended_at, appended_at)
        match record:
            case Trace():
                self._add_trace(record)
            case Feedback():
                self._add_feedback(record)
            case Episode():
                self._add_episode(record)
            case PolicyManifest():
                self._versions.add_manifest(record)
                self._newest_version = max(self._newest_version or 0, record.policy_version)
                self._touch("trained", record.published_at)
            case Release():
                self._versions.add_release(record)
            case NodeStatus():
                self._versions.add_status(record)
                self._nodes.add(record)
            case Ledger():
                self._ledgers[record.process, record.node] = record
            case DeadLetter():
                self._counts["dead_letters"] += 1

    def count_unreadable(self) -> None:
        """A record that could not be decoded."""
        self._counts["unreadable"] += 1

    def _touch(self, stage: StageName, at: float) -> None:
        self._newest_at[stage] = max(self._newest_at[stage] or at, at)

    def _add_trace(self, trace: Trace) -> None:
        if not self._traces.add(trace.trace_id, None):
            self._repeats["traces"] += 1
            return
        if trace.lane == "offline":
            self._counts["offline"] += 1
            return
        failed = trace.finish_reason == "error"
        shown = bool(trace.completion_token_ids) and not (failed or trace.suppressed)
        tallies = [self._total, self._curve.at(trace.served_at)]
        if trace.policy_spans:
            tallies.append(self._versions.tally(trace.policy_spans[0].policy_version))
        for tally in tallies:
            tally.count_decision(failed=failed, shown=shown)
        self._decisions.add(trace.served_at)
        if failed:
            self._failures.add(trace.served_at)
        if trace.untrainable is not None:
            self._untrainable[trace.untrainable] += 1
        self._touch("request", trace.served_at)

    def _add_feedback(self, feedback: Feedback) -> None:
        owner = feedback.trace_id or f"{feedback.session_id}/{feedback.user_key}"
        if not self._events.add(f"{owner}/{feedback.event_id}", None):
            self._repeats["feedback"] += 1
            return
        self._counts["feedback"] += 1
        self._touch("feedback", feedback.ingested_at)

    def _add_episode(self, episode: Episode) -> None:
        facts = facts_of(episode)
        if not self._episodes.add(episode.episode_id, facts):
            self._repeats["episodes"] += 1
            return
        if episode.lane == "offline":
            return
        self._touch("episode", episode.closed_at)
        if episode.supersedes is not None:
            replaced = self._episodes.get(episode.supersedes)
            if replaced is None:  # too old to take back: what was counted first stays
                return
            self._count_episode(replaced, -1)
        self._count_episode(facts, 1)
        if facts.shown:
            self._shown_until = max(self._shown_until, facts.served_at)

    def _count_episode(self, facts: EpisodeFacts, sign: int) -> None:
        tallies = [self._total, self._curve.at(facts.served_at)]
        if facts.policy_version is not None:
            tallies.append(self._versions.tally(facts.policy_version))
        for tally in tallies:
            tally.count_episode(facts, sign)
        self._outcomes[facts.outcome] += sign
        self._counts["held_out" if facts.held_out else "train"] += sign

    def snapshot(self) -> LoopSnapshot:
        """Everything a display needs, as of now."""
        now, book = self._now(), self._versions
        live_version, live_since = self._live()
        versions = book.ordered()
        rates: dict[int, Rates] = {v.policy_version: v.tally.rates() for v in versions}
        base_version = min(rates, default=None)
        views = tuple(v.view(live_version) for v in reversed(versions))
        stages = stages_of(self._newest_at | {"live": live_since}, self._limits, now)
        traffic, ledger = self._traffic(now), self._ledger_lines()
        nodes = self._nodes.views(live_version, now)
        num_unread = self._counts["dead_letters"] + self._counts["unreadable"]
        return LoopSnapshot(
            at=now,
            log_at=self._log_at,
            health=health_of(stages, traffic, nodes, ledger, num_unread),
            stages=stages,
            traffic=traffic,
            total=self._total.rates(),
            base=None if base_version is None else rates[base_version],
            live=None if live_version is None else rates.get(live_version),
            base_version=base_version,
            live_version=live_version,
            live_since=live_since,
            newest_version=self._newest_version,
            curves=self._curves(),
            marks=book.marks(),
            versions=views,
            counts=book.counts(),
            swap_pause_ms=spread_of(book.swap_pauses_ms),
            feedback_to_served_s=spread_of(
                [v.feedback_to_served_s for v in views if v.feedback_to_served_s is not None]
            ),
            delta_bytes=spread_of([v.delta_bytes for v in views if v.delta_bytes]),
            delta_ratio=spread_of([v.delta_ratio for v in views if v.delta_ratio]),
            nodes=nodes,
            ledger=ledger,
            ledger_balanced=all(line.balanced for line in ledger) if ledger else None,
            num_dead_letters=self._counts["dead_letters"],
            num_unreadable=self._counts["unreadable"],
        )

    def _live(self) -> tuple[int | None, float | None]:
        """As released; before any release, what the nodes say they serve."""
        if self._versions.live_version is not None:
            return self._versions.live_version, self._versions.live_since
        serving = [s for s in self._nodes.statuses() if s.state == "serving"]
        version = max((s.policy_version for s in serving), default=None)
        since = {v.policy_version: v.live_at for v in self._versions.ordered()}
        return version, None if version is None else since[version]

    def _traffic(self, now: float) -> Traffic:
        return Traffic(
            num_decisions=self._total.decisions,
            per_second=self._decisions.count(now) / RATE_WINDOW_S,
            num_failed=self._total.failed,
            num_failed_recently=self._failures.count(now),
            num_offline=self._counts["offline"],
            num_feedback=self._counts["feedback"],
            num_episodes_train=self._counts["train"],
            num_episodes_held_out=self._counts["held_out"],
            outcomes=dict(self._outcomes),
            num_repeats=dict(self._repeats),
            untrainable=dict(self._untrainable),
        )

    def _curves(self) -> Curves:
        # Silence closes at once, a suggestion when its window ends: later bins would look silent.
        bins = [(at, tally.rates()) for at, tally in self._curve if at <= self._shown_until]
        return Curves(
            bin_s=self._curve.bin_s,
            at=tuple(at for at, _ in bins),
            num_decisions=tuple(rates.num_decisions for _, rates in bins),
            shown_rate=tuple(rates.shown_rate for _, rates in bins),
            acceptance=tuple(rates.acceptance for _, rates in bins),
            reward_per_decision=tuple(rates.reward_per_decision for _, rates in bins),
            accepted_bytes_per_decision=tuple(r.accepted_bytes_per_decision for _, r in bins),
        )

    def _ledger_lines(self) -> tuple[LedgerLine, ...]:
        return tuple(
            LedgerLine(
                process=process,
                node=node,
                kind=kind,
                at=ledger.at,
                read=read,
                outcomes=ledger.outcomes.get(kind, {}),
                balanced=sum(ledger.outcomes.get(kind, {}).values()) == read,
            )
            for (process, node), ledger in sorted(self._ledgers.items())
            for kind, read in ledger.read.items()
        )
