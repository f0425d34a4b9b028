"""TLS and SASL: what the settings say reaches the broker, and a refusal says what to change."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tendril.log import LogUnavailable
from tendril.log.kafka import KafkaLog
from tendril.log.references import References
from tendril.settings import KafkaSettings
from tests.builders import make_feedback
from tests.tendril.kafka_broker import broker, own_prefix
from tests.tendril.kafka_door import Door, door, self_signed, tls_of

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(60)]
PASSWORD = {"sasl_mechanism": "PLAIN", "username": "ada", "password": "tr0ub4dor"}
PLAIN_TOKEN = b"\0ada\0tr0ub4dor"  # RFC 4616
CERTIFICATES = r"log\.kafka\.security_protocol and the certificate files"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Our own even where another is named: the door stands before a broker without TLS."""
    with broker(tmp_path_factory.mktemp("broker")) as own:
        yield own.server


def round_trip(folder: Path, through: Door, **settings: Any) -> int:
    """Append and read as a member of a group: producer, administrator and consumer each connect."""
    kafka = KafkaSettings(
        servers=(through.server,), topic_prefix=own_prefix(), partitions=1, request_timeout_s=2,
        **settings,
    )  # fmt: skip
    log = KafkaLog(kafka, References(folder))
    try:
        log.append([("s", make_feedback())])
        reader = log.reader("g", ["feedback"])
        num = len(reader.poll(10, 5.0))
        reader.close()
        return num
    finally:
        log.close()


def test_every_client_speaks_tls_to_a_broker_that_is_trusted(server: str, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with door(server, tls_of(certificate, key)) as tls:
        assert round_trip(tmp_path, tls, security_protocol="SSL", ca_file=certificate) == 1
        assert (len(tls.sent) >= 3, tls.refusals) == (True, [])


@pytest.mark.parametrize("why", ["nobody vouches for it", "it is of another host"])
def test_a_certificate_that_is_not_trusted_gets_no_word_and_the_refusal_says_why(
    server: str, tmp_path: Path, why: str
) -> None:
    host = "127.0.0.9" if why == "it is of another host" else "127.0.0.1"
    certificate, key = self_signed(tmp_path, host)
    trusted = {"ca_file": certificate} if host == "127.0.0.9" else {}
    with door(server, tls_of(certificate, key)) as tls:
        with pytest.raises(LogUnavailable, match=CERTIFICATES) as refusal:
            round_trip(tmp_path, tls, security_protocol="SSL", **trusted)
        assert "certificate verify failed" in str(refusal.value)
        assert not any(tls.sent)


def test_a_broker_that_asks_for_a_certificate_gets_that_of_the_settings(
    server: str, tmp_path: Path
) -> None:
    certificate, key = self_signed(tmp_path)
    mine, my_key = self_signed(tmp_path)
    with door(server, tls_of(certificate, key, clients=mine)) as tls:
        trusting = {"security_protocol": "SSL", "ca_file": certificate}
        assert round_trip(tmp_path, tls, certificate_file=mine, key_file=my_key, **trusting) == 1
        with pytest.raises(LogUnavailable, match=CERTIFICATES):
            round_trip(tmp_path, tls, **trusting)


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_every_client_shows_its_password(server: str, tmp_path: Path, protocol: str) -> None:
    certificate, key = self_signed(tmp_path)
    tls = tls_of(certificate, key) if protocol == "SASL_SSL" else None
    with door(server, tls) as plain:
        settings = {"security_protocol": protocol, **PASSWORD}
        if tls is not None:
            settings["ca_file"] = str(certificate)
        assert round_trip(tmp_path, plain, **settings) == 1
        assert len(plain.sent) >= 3
        assert [said.count(PLAIN_TOKEN) for said in plain.sent] == [1] * len(plain.sent)


def test_a_mechanism_that_the_broker_lacks_is_named_with_its_setting(
    server: str, tmp_path: Path
) -> None:
    scram = {"security_protocol": "SASL_PLAINTEXT", **PASSWORD, "sasl_mechanism": "SCRAM-SHA-512"}
    with door(server) as plain:
        with pytest.raises(LogUnavailable, match=r"log\.kafka\.sasl_mechanism") as refusal:
            round_trip(tmp_path, plain, **scram)
        assert "SCRAM-SHA-512" in str(refusal.value)
        assert "tr0ub4dor" not in str(refusal.value)
        assert not any(b"tr0ub4dor" in said for said in plain.sent)
