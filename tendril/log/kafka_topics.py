"""Which topics a Kafka log has and how each is set up: what is wanted, and what is wrong."""

from collections.abc import Mapping
from typing import NamedTuple

from tendril.log.partitions import num_partitions
from tendril.records import (
    TYPE_BY_TOPIC,
    Consent,
    PolicyManifest,
    Quarantine,
    Release,
    RewardFit,
)
from tendril.settings import KafkaSettings

KEPT = (
    PolicyManifest.TOPIC, Release.TOPIC, Quarantine.TOPIC, Consent.TOPIC, RewardFit.TOPIC,
)  # fmt: skip
"""The state of the loop is the fold of these from their beginning."""
FOREVER_MS = -1


class Topic(NamedTuple):
    """A topic as it is or should be."""

    num_partitions: int
    configs: Mapping[str, str]


class Problem(NamedTuple):
    """One way in which a topic breaks what the log promises."""

    found: str
    cure: str


def wanted(kafka: KafkaSettings) -> dict[str, Topic]:
    """Every topic by its name on the cluster."""
    return {kafka.topic_prefix + topic: _wanted(topic, kafka) for topic in TYPE_BY_TOPIC}


def _wanted(topic: str, kafka: KafkaSettings) -> Topic:
    retention_ms = FOREVER_MS if topic in KEPT else int(kafka.retention_hours * 3_600_000)
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "message.timestamp.type": "LogAppendTime",  # one clock for all, the brokers'
    }
    return Topic(num_partitions(topic, kafka.partitions), configs)


def retention_s(kafka: KafkaSettings) -> dict[str, float]:
    """For each topic that forgets, after how long."""
    return {topic: 3_600 * kafka.retention_hours for topic in TYPE_BY_TOPIC if topic not in KEPT}


def problems(name: str, want: Topic, found: Topic) -> list[Problem]:
    """What is wrong with an existing topic; [] where nothing is."""
    said = []
    if found.num_partitions != want.num_partitions:
        said.append(
            Problem(
                f"{name}: expected {want.num_partitions} partitions, found {found.num_partitions}",
                "set log.kafka.partitions to what traces and feedback have (other topics have 1), "
                "or choose a new log.kafka.topic_prefix",
            )
        )
    for key, value in want.configs.items():
        have = found.configs.get(key, value)  # some brokers do not tell
        if not _good_enough(key, value, have):
            said.append(
                Problem(
                    f"{name}: expected {key}={value}, found {have}",
                    f"change it with kafka-configs.sh --alter --entity-type topics --entity-name "
                    f"{name} --add-config {key}={value}",
                )
            )
    return said


def _good_enough(key: str, want: str, have: str) -> bool:
    if key != "retention.ms" or FOREVER_MS in (int(want), int(have)):
        return want == have
    return int(have) <= int(want)  # forgetting earlier breaks no promise to a user
