"""The log that the settings name."""

from tendril.log.protocol import EventLog
from tendril.log.sqlite import SqliteLog
from tendril.settings import Settings


def open_log(settings: Settings) -> EventLog:
    """Open it. Raises `LogUnavailable` where that fails; Kafka is connected to when used."""
    if settings.log.kind == "sqlite":
        return SqliteLog(settings.path(settings.log.path))
    from tendril.log.kafka import KafkaLog
    from tendril.log.references import References

    kafka = settings.log.kafka
    return KafkaLog(kafka, References(settings.path(kafka.references)))
