"""The event log: one protocol, several implementations, one contract test."""

from tendril.log.memory import MemoryLog
from tendril.log.protocol import (
    EventLog,
    LeaseLost,
    LogReader,
    LogRecord,
    LogUnavailable,
    Offsets,
    TopicPartition,
)
from tendril.log.reading import drain, read_all, readable
from tendril.log.sqlite import SqliteLog
from tendril.settings import InvalidSettings, Settings

__all__ = [
    "EventLog",
    "LeaseLost",
    "LogReader",
    "LogRecord",
    "LogUnavailable",
    "MemoryLog",
    "Offsets",
    "SqliteLog",
    "TopicPartition",
    "drain",
    "open_log",
    "open_log_to_read",
    "read_all",
    "readable",
]


def open_log(settings: Settings) -> EventLog:
    """The log that the settings name.

    Raises `LogUnavailable` where SQLite's file cannot be used, and `InvalidSettings` where it has
    another number of partitions or kafka-python is missing. Kafka is connected to with the first
    call.
    """
    if settings.log.kind == "sqlite":
        return SqliteLog(settings.path(settings.log.path), settings.log.partitions)
    try:
        from tendril.log.kafka import KafkaLog
    except ModuleNotFoundError as error:
        raise InvalidSettings(
            f"log.kind is kafka, but {error.name} is not installed: pip install 'tendril-rl[kafka]'"
        ) from error
    from tendril.log.references import References

    kafka = settings.log.kafka
    return KafkaLog(kafka, References(settings.path(kafka.references)))


def open_log_to_read(settings: Settings) -> EventLog:
    """The same for who only looks: where nothing was written yet, an empty one, and no file."""
    if settings.log.kind == "sqlite" and not settings.path(settings.log.path).exists():
        return MemoryLog()
    return open_log(settings)
