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
from tendril.log.sqlite import SqliteLog

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
]
