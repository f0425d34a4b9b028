"""`tendril doctor` on a Kafka log: what it finds, and the cure it names."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tendril.cli.doctor import kafka_finding, run_doctor
from tendril.log.kafka import KafkaLog
from tendril.log.references import References
from tendril.settings import KafkaSettings
from tests.builders import make_trace
from tests.tendril.kafka_broker import broker_address, delete_topics, own_prefix


def with_broker(test: Any) -> Any:
    return pytest.mark.kafka(pytest.mark.timeout(60)(test))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with broker_address(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture
def kafka(server: str, tmp_path: Path) -> KafkaSettings:
    """Settings of a log that has been used."""
    settings = KafkaSettings(servers=(server,), topic_prefix=own_prefix(), partitions=3)
    log = KafkaLog(settings, References(tmp_path))
    log.append([("s", make_trace())])
    log.close()
    return settings


@with_broker
def test_a_log_in_use_is_well(kafka: KafkaSettings) -> None:
    finding = kafka_finding(kafka)
    assert (finding.ok, finding.cure) == (True, "")
    assert f"Kafka at {kafka.servers[0]} answers" in finding.found


@with_broker
def test_topics_that_do_not_exist_yet_are_well_and_are_not_created(server: str) -> None:
    settings = KafkaSettings(servers=(server,), topic_prefix=own_prefix())
    assert kafka_finding(settings).ok
    assert "the first process creates the topics" in kafka_finding(settings).found
    assert delete_topics(server, settings.topic_prefix) == []


@with_broker
def test_one_topic_missing_among_others_is_named(kafka: KafkaSettings) -> None:
    releases = f"{kafka.topic_prefix}releases"
    assert delete_topics(kafka.servers[0], releases) == [releases]
    finding = kafka_finding(kafka)
    assert not finding.ok
    assert releases in finding.found
    assert "empty" in finding.cure


@with_broker
def test_other_partitions_and_retention_are_found_each_with_its_cure(kafka: KafkaSettings) -> None:
    finding = kafka_finding(kafka.model_copy(update={"partitions": 5, "retention_hours": 1}))
    assert not finding.ok
    for topic in ("traces", "feedback"):
        assert f"{kafka.topic_prefix}{topic}: expected 5 partitions, found 3" in finding.found
    assert "expected retention.ms=3600000, found 604800000" in finding.found
    assert finding.cure.count("set log.kafka.partitions") == 1
    assert f"--entity-name {kafka.topic_prefix}traces" in finding.cure


def test_a_broker_that_is_away_fails_the_doctor_and_no_sqlite_file_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    monkeypatch.setenv("TENDRIL_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("TENDRIL_LOG__KIND", "kafka")
    monkeypatch.setenv("TENDRIL_LOG__KAFKA__SERVERS", f'["127.0.0.1:{port}"]')
    monkeypatch.setenv("TENDRIL_LOG__KAFKA__REQUEST_TIMEOUT_S", "1")
    assert run_doctor(None, as_json=False) == 1
    lines = capsys.readouterr().out.splitlines()
    [at] = [n for n, line in enumerate(lines) if line.startswith("FAIL  event log")]
    assert f"Kafka at 127.0.0.1:{port}" in lines[at]
    assert "log.kafka.servers" in lines[at + 1]
    assert list(tmp_path.glob("*.db")) == []
