"""The ship loop: published candidates go through the gate, and the good ones into service.

    policies, releases: read whole at each start (small); never committed
    episodes:           read from the oldest held-out episode still needed
    loop: read all that is new -> decide -> hold, gate or ship -> commit

What was decided is known from `releases` alone, so a restart decides nothing twice.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from shipper.candidate_gate import CandidateGate
from shipper.releases import RELEASES_KEY, ReleaseHistory
from shipper.replay import ReplaySet
from shipper.shipping import Shipper, ShipRefused
from shipper.staging import WrongWeights
from shipper.store import PointerMoved, WeightStore
from tendril.blobs import CorruptObject
from tendril.log import EventLog, LogReader, LogRecord, TopicPartition, open_log
from tendril.records import (
    Episode,
    EvalReport,
    InvalidRecord,
    PolicyManifest,
    Release,
    ReleaseState,
    decode,
)
from tendril.settings import Settings
from tendril.telemetry import NO_TELEMETRY, Telemetry, setup
from tendril.weights import InvalidWeights
from tendril.withdrawals import Withdrawals

logger = logging.getLogger(__name__)
BATCH_RECORDS = 500
POLL_S = 0.5
RETRY_S = 2.0
OPEN_STATES = (None, "published", "candidate")
ACTOR = "gate"


class Decision(NamedTuple):
    """What to do now. At most one of `gate` and `ship` is set."""

    hold: tuple[tuple[int, str], ...] = ()
    """Versions that will not be gated, each with its reason."""
    gate: int | None = None
    ship: int | None = None
    """Passed before, not in service yet: a crash came between."""


def decide(history: ReleaseHistory, manifests: Mapping[int, PolicyManifest]) -> Decision:
    """Gate only the newest waiting candidate, and only if it builds on weights still trusted."""
    waiting = sorted(v for v in manifests if history.state_of(v) in OPEN_STATES)
    hold = [(version, "superseded") for version in waiting[:-1]]
    passed = [v for v in manifests if history.state_of(v) == "gate_passed" and v > history.live]
    if not waiting:
        return Decision(ship=max(passed, default=None))
    newest = waiting[-1]
    if newest < history.live:
        return Decision(hold=(*hold, (newest, "superseded")))
    if (bad := rolled_back_ancestor(newest, history, manifests)) is not None:
        return Decision(hold=(*hold, (newest, f"its parent line has rolled-back version {bad}")))
    return Decision(hold=tuple(hold), gate=newest)


def rolled_back_ancestor(
    version: int, history: ReleaseHistory, manifests: Mapping[int, PolicyManifest]
) -> int | None:
    """The nearest ancestor taken out of service; the search ends at the live version."""
    while (manifest := manifests.get(version)) is not None and manifest.parent is not None:
        version = manifest.parent
        if version == history.live:
            return None
        if history.state_of(version) in ("rolled_back", "quarantined"):
            return version
    return None


class Gate(Protocol):
    """What `CandidateGate` does; tests give verdicts without weights."""

    def evaluate(
        self, candidate: PolicyManifest, live_version: int, episodes: Sequence[Episode]
    ) -> EvalReport:
        """The report on a candidate against the live version."""
        ...


class ShipLoop:
    """What the loop remembers between rounds; all of it comes from the log."""

    def __init__(
        self,
        log: EventLog,
        shipper: Shipper,
        gate: Gate,
        max_kept: int,
        telemetry: Telemetry = NO_TELEMETRY,
        withdrawals: Withdrawals | None = None,
    ) -> None:
        self._withdrawals = withdrawals
        self._log, self._shipper, self._gate, self._telemetry = log, shipper, gate, telemetry
        self._history = ReleaseHistory()
        self._manifests: dict[int, PolicyManifest] = {}
        self._replay = ReplaySet(max_kept)
        self._next: dict[TopicPartition, int] = {}

    def round(self, reader: LogReader, poll_s: float = POLL_S) -> None:
        """Read what is new, act once the log is read to its end, commit."""
        batch = reader.poll(BATCH_RECORDS, poll_s)
        for record in batch:
            self._take(record)
        if len(batch) < BATCH_RECORDS and self._knows_all() and self._history.served:
            if self._shipper.is_behind(self._history):
                self._shipper.reconcile()  # its event comes back through the reader
            else:
                self._act(decide(self._history, self._manifests))
        if safe := self._replay.safe_offsets():
            reader.commit(safe)

    def _take(self, record: LogRecord) -> None:
        place = TopicPartition(record.topic, record.partition)
        if record.offset < self._next.get(place, 0):
            return  # a member whose session was lost reads again what it had not committed
        self._next[place] = record.offset + 1
        try:
            if record.topic == Release.TOPIC:
                self._history.add(decode(Release, record.value))
            elif record.topic == PolicyManifest.TOPIC:
                manifest = decode(PolicyManifest, record.value)
                self._manifests[manifest.policy_version] = manifest
            else:
                self._replay.add(record, decode(Episode, record.value))
        except InvalidRecord as error:
            self._log.append([(record.key, record.dead_letter(error, time.time()))])

    def _knows_all(self) -> bool:
        """Deciding on half of the releases would gate twice what was decided already."""
        ends = self._log.end_offsets([Release.TOPIC, PolicyManifest.TOPIC])
        return all(self._next.get(place, 0) >= end for place, end in ends.items())

    def _act(self, decision: Decision) -> None:
        for version, reason in decision.hold:
            self._append(version, "gate_held", reason)
        try:
            if decision.gate is not None:
                self._judge(decision.gate)
            if decision.ship is not None:
                self._ship(decision.ship, self._history.evidence_for(decision.ship))
        except PointerMoved as error:
            logger.warning("another release came first, deciding again: %s", error)

    def _judge(self, version: int) -> None:
        if self._history.state_of(version) is None:
            self._append(version, "published", "the learner published it")
        live = self._history.live
        try:
            with self._telemetry.span("tendril.shipper.gate"):
                report = self._gate.evaluate(self._manifests[version], live, self._episodes())
        except (CorruptObject, WrongWeights, InvalidWeights) as error:
            self._append(version, "gate_held", str(error))
            return
        self._telemetry.count("tendril.shipper.verdicts", verdict=report.verdict)
        passed = report.verdict == "pass"
        self._append(version, "gate_passed" if passed else "gate_held", summary(report), report)
        if passed:
            self._ship(version, report)

    def _episodes(self) -> list[Episode]:
        """Those kept that may still be learned from."""
        if self._withdrawals is None:
            return self._replay.episodes
        self._withdrawals.follow()
        reason = self._withdrawals.reason
        return [episode for episode in self._replay.episodes if reason(episode) is None]

    def _ship(self, version: int, evidence: EvalReport | None) -> None:
        reason = summary(evidence) if evidence else "passed the gate"
        try:
            with self._telemetry.span("tendril.shipper.delta"):
                shipped = self._shipper.ship(version, actor=ACTOR, reason=reason, evidence=evidence)
        except ShipRefused as refused:
            self._append(version, "gate_held", str(refused), evidence)
            return
        if shipped.delta is not None:
            full_bytes = max(file.num_bytes for file in shipped.snapshot)
            ratio = full_bytes / shipped.delta.num_bytes
            self._telemetry.record("tendril.shipper.delta.ratio", ratio)
            self._telemetry.gauge("tendril.shipper.delta.size", shipped.delta.num_bytes)

    def _append(
        self, version: int, state: ReleaseState, reason: str, evidence: EvalReport | None = None
    ) -> None:
        """The event comes back through the reader; `_knows_all` waits for it."""
        release = Release(
            policy_version=version, state=state, actor=ACTOR, reason=reason, at=time.time(),
            evidence=evidence,
        )  # fmt: skip
        logger.info("version %d: %s (%s)", version, state, reason)
        self._log.append([(RELEASES_KEY, release)])


def summary(report: EvalReport) -> str:
    """The verdict and the checks behind it, in one line."""
    bad = [
        f"{c.name} {c.verdict}" + (f" ({c.why})" if c.why else "")
        for c in report.checks
        if c.verdict != "pass"
    ]
    return "; ".join(bad) if bad else "all checks passed"


def run(settings: Settings, stop: threading.Event) -> None:
    """Gate and ship until `stop` is set; an empty store gets the first checkpoint as version 1."""
    log = open_log(settings)
    store = WeightStore(settings.path(settings.shipping.store))
    shipper = Shipper(store, log)
    gate = CandidateGate(store, settings)
    telemetry = setup("shipper", settings.telemetry)
    try:
        if store.pointer() is None:
            shipper.bootstrap(settings.serving.checkpoint)
        while not stop.is_set():
            try:
                shipper.reconcile()
                max_kept = settings.shipping.gate_max_episodes
                with contextlib.closing(Withdrawals(log, settings.privacy.tenants)) as withdrawals:
                    loop = ShipLoop(log, shipper, gate, max_kept, telemetry, withdrawals)
                    follow(log, loop, stop)
            except Exception:  # a full disk or a busy log passes; state is rebuilt from the log
                logger.exception("shipper: starting again from the log")
                stop.wait(RETRY_S)
    finally:
        telemetry.shutdown()
        log.close()


def follow(log: EventLog, loop: ShipLoop, stop: threading.Event) -> None:
    """One life of the loop: from the log's state until `stop` or an error."""
    reader = log.reader("shipper", [Release.TOPIC, PolicyManifest.TOPIC, Episode.TOPIC])
    try:
        while not stop.is_set():
            loop.round(reader)
    finally:
        reader.close()
