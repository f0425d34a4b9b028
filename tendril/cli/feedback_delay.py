"""From a user's feedback to the first moment when a policy trained on it serves.

Counted for every episode that was trained on, not only for the newest of each version.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dashboards.spread import Spread, spread_of
from tendril.log import EventLog, read_all
from tendril.records import Episode, NodeStatus, PolicyManifest, decode


class Served(NamedTuple):
    """A version that reached a node."""

    num_read: int
    """Offset on `episodes` up to which it was trained."""
    live_at: float


def feedback_to_served(log: EventLog) -> Spread:
    """Seconds, over all trained episodes with feedback that a served version has read."""
    served = served_versions(log)
    delays: list[float] = []
    for row in read_all(log, [Episode.TOPIC]):
        episode = decode(Episode, row.value)
        if episode.held_out or episode.reward is None or episode.feedback_at is None:
            continue
        live_at = min((s.live_at for s in served if s.num_read > row.offset), default=None)
        if live_at is not None:
            delays.append(live_at - episode.feedback_at)
    return spread_of(delays)


def served_versions(log: EventLog) -> Sequence[Served]:
    """Trained versions that some node acknowledged, each at its first acknowledgement."""
    live_at: dict[int, float] = {}
    for row in read_all(log, [NodeStatus.TOPIC]):
        status = decode(NodeStatus, row.value)
        if status.state == "serving":
            live_at.setdefault(status.policy_version, status.at)
    manifests = [decode(PolicyManifest, row.value) for row in read_all(log, [PolicyManifest.TOPIC])]
    return [
        Served(m.trained_offsets.get(f"{Episode.TOPIC}/0", 0), live_at[m.policy_version])
        for m in manifests
        if m.parent is not None and m.policy_version in live_at
    ]
