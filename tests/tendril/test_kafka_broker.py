"""A run of the tests leaves nothing of its own on a broker that somebody named."""

from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from tendril.log.kafka import KafkaLog
from tendril.log.references import References
from tendril.settings import KafkaSettings
from tests.builders import make_trace
from tests.tendril.kafka_broker import NAMED, broker, broker_address, own_prefix

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(60)]


def _use(folder: Path, server: str, prefix: str) -> None:
    """Topics, and a group that has committed."""
    log = KafkaLog(KafkaSettings(servers=(server,), topic_prefix=prefix), References(folder))
    log.append([("s", make_trace())])
    reader = log.reader("g", ["traces"])
    [row] = reader.poll(1, 5.0)
    reader.commit({place: 1 for place in reader.assignment() if place.partition == row.partition})
    reader.close()
    log.close()


def test_topics_and_groups_of_a_run_are_deleted_in_the_end_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker(tmp_path / "broker") as named:
        monkeypatch.setenv(NAMED, named.server)
        with broker_address(tmp_path / "unused") as server:
            assert server == named.server
            for prefix in (own_prefix(), own_prefix(), "theirs-"):
                _use(tmp_path, server, prefix)
        admin = KafkaAdminClient(bootstrap_servers=[named.server])
        left, groups = admin.list_topics(), [g["group_id"] for g in admin.list_groups()]
        admin.close()
    assert {name for name in left if not name.startswith("_")} == {
        name for name in left if name.startswith("theirs-")
    }
    assert "theirs-traces" in left
    assert groups == ["theirs-g"]


def test_each_prefix_is_another_one() -> None:
    assert len({own_prefix() for _ in range(100)}) == 100
