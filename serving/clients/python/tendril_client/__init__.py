"""Tendril's client: the official OpenAI client, and what users did with each reply."""

from tendril_client.client import AsyncTendril, NoTrace, Tendril
from tendril_client.delivery import Drop
from tendril_client.events import Event, EventType
from tendril_client.outbox import Counts, Outbox
from tendril_client.retention import Retention, find_place, measure_retention
from tendril_client.retention_meter import RetentionMeter
from tendril_client.suggestion import IllegalLifecycle, Suggestion, byte_span

__all__ = [
    "AsyncTendril",
    "Counts",
    "Drop",
    "Event",
    "EventType",
    "IllegalLifecycle",
    "NoTrace",
    "Outbox",
    "Retention",
    "RetentionMeter",
    "Suggestion",
    "Tendril",
    "byte_span",
    "find_place",
    "measure_retention",
]
