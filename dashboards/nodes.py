"""The serving nodes as they last reported, and what each last refused."""

from collections.abc import Iterator
from dataclasses import dataclass

from dashboards.snapshot import NodeView
from tendril.records import NodeStatus

MAX_NODES = 200


@dataclass(slots=True)
class Node:
    """One replica: its newest status, its newest refusal, and whether it swapped since."""

    status: NodeStatus
    refusal: NodeStatus | None = None
    swapped_since: bool = False

    def view(self, live_version: int | None, now: float) -> NodeView:
        status, refusal = self.status, self.refusal
        is_behind = status.policy_version != live_version
        return NodeView(
            node=status.node,
            policy_version=status.policy_version,
            state=status.state,
            detail=status.detail,
            versions_behind=max(0, (live_version or 0) - status.policy_version),
            at=status.at,
            age_s=max(0.0, now - status.at),
            num_running=status.num_running,
            num_waiting=status.num_waiting,
            refusal=(refusal.detail or "no reason given") if refusal else "",
            refused_s=max(0.0, now - refusal.at) if refusal else None,
            refusing=refusal is not None and not self.swapped_since and is_behind,
        )


class NodeBook:
    """The `MAX_NODES` nodes that were heard of last."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def add(self, status: NodeStatus) -> None:
        node = self._nodes.pop(status.node, None) or Node(status)
        node.status = status
        if status.state == "refused":
            node.refusal, node.swapped_since = status, False
        elif status.swap_pause_ms is not None:
            node.swapped_since = True
        self._nodes[status.node] = node
        if len(self._nodes) > MAX_NODES:
            del self._nodes[next(iter(self._nodes))]

    def statuses(self) -> Iterator[NodeStatus]:
        return (node.status for node in self._nodes.values())

    def views(self, live_version: int | None, now: float) -> tuple[NodeView, ...]:
        """By name."""
        return tuple(node.view(live_version, now) for _, node in sorted(self._nodes.items()))
