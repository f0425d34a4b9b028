"""Creates the topics that are missing and checks those that exist."""

import time
from contextlib import suppress
from typing import Any

import kafka.errors as errors
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from tendril.log import kafka_topics
from tendril.log.kafka.client import client_options, connected, explained
from tendril.log.protocol import LogUnavailable
from tendril.settings import KafkaSettings

STEP_S = 0.1


def prepare_topics(settings: KafkaSettings) -> None:
    """Create missing topics; raises `LogUnavailable` for existing ones that break a promise."""
    want = kafka_topics.wanted(settings)
    admin = connected(KafkaAdminClient, **client_options(settings))
    try:
        found = existing_topics(admin, want)
        missing = {
            name: {
                "num_partitions": topic.num_partitions,
                "replication_factor": settings.replication_factor,
                "configs": dict(topic.configs),
            }
            for name, topic in want.items()
            if name not in found
        }
        if missing:
            with suppress(errors.TopicAlreadyExistsError):  # another process was faster
                admin.create_topics(missing, timeout_ms=int(1_000 * settings.request_timeout_s))
            wait_until_there(admin, want, settings.request_timeout_s)
    finally:
        admin.close()
    if said := problems_of(want, found):
        raise LogUnavailable("\n".join(f"{problem.found}; {problem.cure}" for problem in said))


def look_at_topics(settings: KafkaSettings) -> tuple[list[str], list[kafka_topics.Problem]]:
    """Those missing, and what is wrong with the others; changes nothing.

    Raises `LogUnavailable`.
    """
    want = kafka_topics.wanted(settings)
    with explained(settings.servers, lambda: None):
        admin = connected(KafkaAdminClient, **client_options(settings))
        try:
            found = existing_topics(admin, want)
        finally:
            admin.close()
    return [name for name in want if name not in found], problems_of(want, found)


def problems_of(
    want: dict[str, kafka_topics.Topic], found: dict[str, kafka_topics.Topic]
) -> list[kafka_topics.Problem]:
    return [p for name in found for p in kafka_topics.problems(name, want[name], found[name])]


def existing_topics(
    admin: Any, want: dict[str, kafka_topics.Topic]
) -> dict[str, kafka_topics.Topic]:
    """Those of `want` that the cluster has, as they are."""
    there = set(admin.list_topics())
    names = [name for name in want if name in there]
    if not names:
        return {}
    counts = {t["name"]: len(t["partitions"]) for t in admin.describe_topics(names)}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    described = admin.describe_configs(resources, config_filter="all")
    configs = _configs_by_topic(described)
    return {name: kafka_topics.Topic(counts[name], configs.get(name, {})) for name in names}


def _configs_by_topic(described: Any) -> dict[str, dict[str, str]]:
    by_name = described.get("topic", {})
    return {
        name: {key: str(config["value"]) for key, config in configs.items()}
        for name, configs in by_name.items()
    }


def wait_until_there(admin: Any, want: dict[str, kafka_topics.Topic], timeout_s: float) -> None:
    """Until every topic has all its partitions with a leader, as it may not at once."""
    deadline = time.monotonic() + timeout_s
    while True:
        described = admin.describe_topics(list(want))
        ready = {
            t["name"]
            for t in described
            if t["partitions"] and all(p["leader_id"] >= 0 for p in t["partitions"])
        }
        if set(want) <= ready:
            return
        if time.monotonic() > deadline:
            missing = ", ".join(sorted(set(want) - ready))
            raise LogUnavailable(f"expected topics with leaders within {timeout_s:g} s: {missing}")
        time.sleep(STEP_S)
