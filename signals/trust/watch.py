"""Looks at one window after another, and places quarantines for what the detectors find.

One extractor of all does it, the one that has partition 0. A window is looked at when its early
looks are in the lake; those that passed while nobody watched are caught up with, within a day.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from signals.recipe import Recipe
from signals.trust.columns import Traces
from signals.trust.detectors import detect, remember
from signals.trust.finding import Finding
from signals.trust.grader_health import outages
from signals.trust.lake_window import LakeWindow, read_scores, read_window
from signals.trust.ledgers import LedgerFollower
from signals.trust.memory import Memory, read_memory, sampled, write_memory
from signals.trust.quarantine import counts, placed
from signals.trust.style import Style, style_of
from signals.trust.window import FollowUpText, Window
from signals.turns import TurnReader
from tendril.log import EventLog
from tendril.quarantine import QuarantineFollower, account_id
from tendril.records import Quarantine
from tendril.settings import Settings
from tendril.telemetry import Telemetry

if TYPE_CHECKING:
    from tendril.lake.lake import Lake

MAX_CAUGHT_UP = 24
OUTAGE_S = 86_400.0
"""How far back outages are looked for; one that goes on is followed from its beginning."""
BEFORE_OUTAGE_S = 3_600.0
SETTLE_S = 5.0
ACTOR = "detectors"
logger = logging.getLogger(__name__)


class Watch:
    """Owns the detectors' memory; one thread calls `look`."""

    def __init__(
        self,
        settings: Settings,
        log: EventLog,
        lake: "Lake",
        recipe: Recipe,
        turns: TurnReader,
        telemetry: Telemetry,
    ) -> None:
        self._settings, self._log, self._lake, self._recipe = settings, log, lake, recipe
        self._telemetry = telemetry
        self._follower, self._ledgers = QuarantineFollower(log), LedgerFollower(log)
        self._turns = turns
        self._path: Path = settings.path(settings.signals.folder / "detectors.msgpack")

    def look(self, now: float) -> bool:
        """Look at the next window; False if none is over. Raises `LogUnavailable` or
        `LakeUnavailable`."""
        memory, window_s = read_memory(self._path), self._settings.signals.trust.window_s
        self._follower.follow()
        self._ledgers.follow()
        last = (now - self._patience_s()) // window_s * window_s
        begun = min(-(-memory.until // window_s) * window_s, last)  # whole windows, none to come
        since = max(begun, last - MAX_CAUGHT_UP * window_s)
        if memory.until == 0.0 or memory.until > last + window_s:  # a first start, or a clock
            write_memory(self._path, msgspec.structs.replace(memory, until=last))  # once ahead
        if memory.until == 0.0 or since >= last:
            return False
        findings, memory = self._look_at(memory, since, since + window_s)
        self._place(findings)
        write_memory(self._path, memory)  # a kill before it looks again, and places nothing twice
        self._ledgers.mark()
        return True

    def skip(self) -> None:
        """Go past a window that cannot be looked at, so that it does not hold up those behind."""
        memory, window_s = read_memory(self._path), self._settings.signals.trust.window_s
        write_memory(self._path, msgspec.structs.replace(memory, until=memory.until + window_s))

    def close(self) -> None:
        self._follower.close()
        self._ledgers.close()

    def _patience_s(self) -> float:
        """After the end of a window, until its early looks are in the lake."""
        early_s = max(self._settings.signals.revise_after_s, default=0.0)
        return early_s + self._settings.lake.commit_interval_s + SETTLE_S

    def _look_at(self, memory: Memory, since: float, until: float) -> tuple[list[Finding], Memory]:
        undo_within_s = self._recipe.completion.undo_within_s
        found = read_window(self._lake, since, until, undo_within_s=undo_within_s)
        found = found._replace(traces=self._with_style(found.traces, since, until))
        window = self._window(found, memory, since, until)
        off = self._settings.signals.trust.detectors_off
        findings = detect(window, off=off) if len(window.traces) else []
        findings += [] if "grader_outage" in off else self._outages(until)
        if not len(window.traces) or any(finding.holds for finding in findings):
            return findings, msgspec.structs.replace(memory, until=until)  # it is not the usual
        reference = {name: sampled(values) for name, values in found.sample.items()}
        return findings, Memory(until=until, history=dict(remember(window)), reference=reference)

    def _window(self, found: LakeWindow, memory: Memory, since: float, until: float) -> Window:
        share, trust = self._settings.gateway.canary_share, self._settings.signals.trust
        return Window(
            since=since,
            until=until,
            traces=found.traces,
            events=found.events,
            history=memory.history,
            ledger=self._ledger(found),
            arm_shares={"live": 1 - share, "canary": share} if share else {},
            reference=memory.samples(),
            sample=found.sample,
            texts=self._follow_ups(since, until),
            grader_reference=found.earlier_scores,
            max_user_share=trust.max_user_share,
            max_tenant_share=trust.max_tenant_share,
        )

    def _outages(self, until: float) -> list[Finding]:
        """Exactly which scores are in doubt; a day is gone through anew, so that ends are seen."""
        going_on = [
            q.since for q in self._follower.quarantines.open()
            if q.detector == "grader_outage" and q.until is None
        ]  # fmt: skip
        since = min([until - OUTAGE_S, *(begun - BEFORE_OUTAGE_S for begun in going_on)])
        by_grader = read_scores(self._lake, since, until)
        found = (outage for name, scores in by_grader.items() for outage in outages(name, scores))
        return [outage.finding for outage in found]

    def _with_style(self, traces: Traces, since: float, until: float) -> Traces:
        """Marks of the replies whose words may be read; the others' stay unknown."""
        replies = self._turns.replies(since, until)
        styles = {trace_id: style_of(text) for trace_id, text in replies.items()}
        unknown = Style(math.nan, math.nan, math.nan, math.nan)
        marks = np.array([styles.get(str(name), unknown) for name in traces.trace_id], float)
        marks = marks.reshape(-1, len(Style._fields))
        clarifies, refuses, flatters, signs_off = marks.T
        return dataclasses.replace(
            traces, clarifies=clarifies, refuses=refuses, flatters=flatters, signs_off=signs_off
        )

    def _follow_ups(self, since: float, until: float) -> list[FollowUpText]:
        """About the reply before, whose reward they move."""
        return [
            FollowUpText(
                turn.before.trace_id,
                account_id(turn.before.tenant, turn.before.user_key),
                turn.follow_up,
            )
            for turn in self._turns.served(since, until)
        ]

    def _ledger(self, found: LakeWindow) -> Mapping[str, Mapping[str, int]]:
        counted = self._ledgers.added()
        traces = dict(counted.get("traces", {})) | {"never_closed": found.num_unknown}
        return {**counted, "traces": traces}

    def _place(self, findings: list[Finding]) -> None:
        for finding in findings:
            self._telemetry.count("tendril.trust.findings", detector=finding.detector)
            say = logger.warning if finding.holds else logger.info
            say("%s: %s %s: %s", finding.detector, finding.scope, finding.scope_id, finding.why)
        self._follower.follow()  # a person may have released one while we looked
        known = self._follower.quarantines
        records = placed(findings, known, actor=ACTOR, at=time.time())
        if records:
            self._log.append([(Quarantine.TOPIC, record) for record in records])
        self._follower.follow()
        for detector, num in counts(known.open()).items():
            self._telemetry.gauge("tendril.trust.quarantines", num, detector=detector)
