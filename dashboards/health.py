"""Whether the loop turns: each hop against the hop that feeds it, and one verdict with reasons.

A hop is `late` beyond its limit and `stale` beyond twice its limit. Compared with its source and
not with the clock, a hop is not blamed for what stopped before it.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from dashboards.snapshot import Health, LedgerLine, NodeView, Stage, Traffic
from tendril.settings import Settings

StageName = Literal["request", "feedback", "episode", "trained", "live"]
STAGE_NAMES: tuple[StageName, ...] = get_args(StageName)


class Limits(NamedTuple):
    """Seconds that a hop may lag behind the hop before it."""

    request: float = 30.0
    feedback: float = 60.0
    episode: float = 120.0
    trained: float = 180.0
    live: float = 180.0


def limits_of(settings: Settings) -> Limits:
    """Limits that follow from the configured cadence: three turns of publishing are too many."""
    cadence_s = 3 * settings.learner.publish_every_s
    return Limits(
        episode=60.0 + settings.signals.feedback_window_s, trained=cadence_s, live=cadence_s
    )


def stages_of(
    newest_at: Mapping[StageName, float | None], limits: Limits, now: float
) -> tuple[Stage, ...]:
    """One stage a hop, in the loop's order."""
    stages: list[Stage] = []
    source_at: float | None = now
    for name, limit_s in zip(STAGE_NAMES, limits, strict=True):
        at = newest_at[name]
        lag_s = None if at is None or source_at is None else max(0.0, source_at - at)
        stages.append(
            Stage(
                name=name,
                at=at,
                age_s=None if at is None else max(0.0, now - at),
                lag_s=lag_s,
                limit_s=limit_s,
                level=_level(at, lag_s, limit_s),
            )
        )
        source_at = at
    return tuple(stages)


def _level(
    at: float | None, lag_s: float | None, limit_s: float
) -> Literal["none", "fresh", "late", "stale"]:
    if at is None:
        return "none"
    if lag_s is None or lag_s <= limit_s:
        return "fresh"
    return "late" if lag_s <= 2 * limit_s else "stale"


def health_of(
    stages: Sequence[Stage],
    traffic: Traffic,
    nodes: Sequence[NodeView],
    ledger: Sequence[LedgerLine],
    num_unread: int,
) -> Health:
    """`waiting` before the first request; else the worst of what is found, all of it listed."""
    if traffic.num_decisions == 0:
        return Health(level="waiting", problems=("waiting for the first request",))
    failing = _failing(stages, traffic, nodes, ledger)
    degraded = _degraded(stages, traffic, num_unread)
    level: Literal["healthy", "degraded", "failing"] = "healthy"
    if failing or degraded:
        level = "failing" if failing else "degraded"
    return Health(level=level, problems=(*failing, *degraded))


def _failing(
    stages: Sequence[Stage],
    traffic: Traffic,
    nodes: Sequence[NodeView],
    ledger: Sequence[LedgerLine],
) -> list[str]:
    found = []
    if traffic.num_failed_recently:
        found.append(f"failed requests in the last 5 minutes: {traffic.num_failed_recently}")
    found += [
        f"ledger of {line.process} does not balance: read {line.read} {line.kind}, "
        f"accounted for {sum(line.outcomes.values())}"
        for line in ledger
        if not line.balanced
    ]
    found += [
        f"{node.node} (version {node.policy_version}) refused an update: {node.refusal}"
        for node in nodes
        if node.refusing
    ]
    return found + _lagging(stages[1:], "stale")


def _degraded(stages: Sequence[Stage], traffic: Traffic, num_unread: int) -> list[str]:
    found = []
    if stages[0].level in ("late", "stale"):
        found.append(f"no request for {stages[0].age_s or 0:.0f} s")
    if traffic.num_failed and not traffic.num_failed_recently:
        found.append(f"failed requests: {traffic.num_failed}, none in the last 5 minutes")
    if num_unread:
        found.append(f"records that nobody could read: {num_unread}")
    return found + _lagging(stages[1:], "late")


def _lagging(stages: Sequence[Stage], level: str) -> list[str]:
    sources = dict(zip(STAGE_NAMES[1:], STAGE_NAMES, strict=False))
    return [
        f"newest {stage.name} is {stage.lag_s or 0:.0f} s behind newest {sources[stage.name]} "
        f"(limit {stage.limit_s:.0f} s)"
        for stage in stages
        if stage.level == level
    ]
