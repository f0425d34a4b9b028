"""Shares a group's partitions out by number, incrementally (KIP-429)."""

from collections.abc import Callable, Sequence
from typing import Any

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from kafka.structs import TopicPartition as KafkaPartition

from tendril.log.partitions import share_out, without_moves


class Copartitioned(AbstractPartitionAssignor):
    """Partition n of each topic goes to one member; kafka-python's sticky one splits them."""

    name = "tendril-copartitioned"
    version = 1

    def __init__(self, owned: Callable[[], frozenset[KafkaPartition]]) -> None:
        self._owned = owned

    def supported_protocols(self) -> list[RebalanceProtocol]:
        return [RebalanceProtocol.COOPERATIVE]

    def metadata(self, topics: Any) -> Any:
        entry = ConsumerProtocolSubscription.TopicPartition
        owned = self._owned()
        return ConsumerProtocolSubscription(
            version=self.version,
            topics=sorted(topics),
            user_data=b"",
            owned_partitions=[
                entry(topic=topic, partitions=sorted(n for t, n in owned if t == topic))
                for topic in sorted({topic for topic, _ in owned})
            ],
        )

    def assign(self, cluster: Any, members: Sequence[Any]) -> dict[str, Any]:
        topics = sorted({topic for member in members for topic in member.metadata.topics})
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        ordered = sorted(members, key=lambda m: (m.group_instance_id or "~", m.member_id))
        owned = {
            member.member_id: frozenset(
                number
                for entry in member.metadata.owned_partitions or ()
                for number in entry.partitions
            )
            for member in ordered
        }
        numbers = range(max(counts.values(), default=0))
        shares = share_out(numbers, [member.member_id for member in ordered], owned)
        return {
            member: ConsumerProtocolAssignment(
                self.version,
                [(t, sorted(n for n in held if n < counts[t])) for t in topics],
                b"",
            )
            for member, held in without_moves(shares, owned).items()
        }

    def on_assignment(self, assignment: Any, generation: int) -> None:
        pass
