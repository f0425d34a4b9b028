"""The event log on Kafka, and the one home of kafka-python.

Producers are idempotent and wait for all replicas (acks=all). Readers are members of classic
consumer groups under an assignor of our own: partitions of one number stay together, and move
(KIP-429) while the others are read on.
"""

from tendril.log.kafka.log import KafkaLog

__all__ = ["KafkaLog"]
