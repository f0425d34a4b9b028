"""How clients of the cluster are made, and what their errors mean."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kafka.errors as errors
from kafka.net.compat import KafkaNetClient

from tendril.log.protocol import LeaseLost, LogUnavailable
from tendril.settings import KafkaSettings

SASL_REFUSALS: tuple[type[Exception], ...] = (
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
)
CURES: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    (
        SASL_REFUSALS,
        "check log.kafka.sasl_mechanism, username and password",
    ),
    (
        (errors.AuthorizationError,),
        "allow this user to describe, read and write the topics and to read the groups",
    ),
    (
        (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError),
        "lower log.kafka.max_record_bytes below the brokers' message.max.bytes, or raise that",
    ),
    (
        (errors.UnknownTopicOrPartitionError, errors.InvalidPartitionsError),
        "a topic is missing or has other partitions; the next call creates what is missing",
    ),
    (
        (errors.InvalidReplicationFactorError, errors.NotEnoughReplicasError),
        "set log.kafka.replication_factor to at most the number of brokers, and see that they run",
    ),
    (
        (errors.UnsupportedVersionError, errors.UnsupportedCodecError),
        "choose another log.kafka.compression, or a newer broker",
    ),
    ((ssl.SSLError,), "check log.kafka.security_protocol and the certificate files"),
)


def unavailable(servers: tuple[str, ...], error: Exception) -> LogUnavailable:
    """The error to raise in the place of `error`, with what to do about it."""
    cure = next(
        (cure for kinds, cure in CURES if isinstance(error, kinds)),
        "see that the broker runs and can be reached, or set log.kafka.servers",
    )
    said = str(error) or type(error).__name__
    return LogUnavailable(f"Kafka at {', '.join(servers)}: {said}. Cure: {cure}")


@contextmanager
def explained(servers: tuple[str, ...], topic_missing: Callable[[], None]) -> Iterator[None]:
    """Turns what kafka-python and the network can say into `LogUnavailable` and `LeaseLost`."""
    try:
        yield
    except errors.FencedInstanceIdError as error:
        raise LeaseLost("another process has the same log.kafka.member") from error
    except (errors.KafkaError, OSError) as error:
        if isinstance(error, errors.UnknownTopicOrPartitionError | errors.KafkaTimeoutError):
            topic_missing()
        raise unavailable(servers, error) from error


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """What every client of kafka-python is made with."""
    request_ms = int(1_000 * settings.request_timeout_s)
    options: dict[str, Any] = {
        "bootstrap_servers": list(settings.servers),
        "client_id": "tendril",
        "request_timeout_ms": request_ms,
        "bootstrap_timeout_ms": request_ms,
        "reconnect_backoff_max_ms": 1_000,
        "security_protocol": settings.security_protocol,
    }
    for name, path in (
        ("ssl_cafile", settings.ca_file),
        ("ssl_certfile", settings.certificate_file),
        ("ssl_keyfile", settings.key_file),
    ):
        if path is not None:
            options[name] = str(path)
    if settings.security_protocol.startswith("SASL") and settings.password is not None:
        options |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.username,
            "sasl_plain_password": settings.password.get_secret_value(),
        }
    return options


def connected(make: Callable[..., Any], **options: Any) -> Any:
    """`make(**options)`; what a constructor that fails has started by then is stopped."""
    started: list[KafkaNetClient] = []
    attempts: list[Any] = []

    def client(**config: Any) -> KafkaNetClient:
        started.append(KafkaNetClient(**config))
        remember_connections(started[-1]._manager, attempts)
        return started[-1]

    try:
        return make(kafka_client=client, **options)
    except BaseException as error:
        for network in started:
            network.close()
            network._net.stop()
        if isinstance(error, errors.KafkaTimeoutError) and (why := refusal(attempts)) is not None:
            raise why from error
        raise
    finally:
        for network in started:
            del network._manager.get_connection  # the class's own again


def remember_connections(manager: Any, attempts: list[Any]) -> None:
    """kafka-python tries again whatever the reason, and then only says that time is up."""
    connect = manager.get_connection

    def get_connection(*args: Any, **kwargs: Any) -> Any:
        attempts.append(connect(*args, **kwargs))
        return attempts[-1]

    manager.get_connection = get_connection


def refusal(attempts: list[Any]) -> Exception | None:
    """Why one side would not talk to the other, if that is what happened last."""
    error = attempts[-1].init_future.exception if attempts else None
    if isinstance(error, SASL_REFUSALS):
        return error
    # What TLS says arrives as the text of another error.
    return ssl.SSLError(str(error)) if "_ssl.c" in str(error) else None
