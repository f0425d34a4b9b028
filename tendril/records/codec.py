"""Records as bytes: msgpack on the log, one topic for each type."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from tendril.records.base import InvalidRecord, Record
from tendril.records.consent import Consent
from tendril.records.episode import Episode
from tendril.records.feedback import Feedback
from tendril.records.operations import DeadLetter, Ledger, NodeStatus
from tendril.records.policy import PolicyManifest
from tendril.records.quarantine import Quarantine
from tendril.records.release import Release
from tendril.records.reward_fit import RewardFit
from tendril.records.trace import Trace

RECORD_TYPES: tuple[type[Record], ...] = (
    Trace, Feedback, Episode, PolicyManifest, Release, NodeStatus, Ledger, DeadLetter, Quarantine,
    Consent, RewardFit,
)  # fmt: skip
TYPE_BY_TOPIC: Mapping[str, type[Record]] = {record.TOPIC: record for record in RECORD_TYPES}
R = TypeVar("R", bound=Record)
_encoder = msgspec.msgpack.Encoder()
_decoders: Mapping[type[Record], msgspec.msgpack.Decoder[Any]] = {
    record: msgspec.msgpack.Decoder(record) for record in RECORD_TYPES
}


def encode(record: Record) -> bytes:
    """The record as msgpack: what goes on the log."""
    return _encoder.encode(record)


def decode(record_type: type[R], value: bytes) -> R:
    """Read one record; raises `InvalidRecord` for anything that is not it."""
    try:
        record: R = _decoders[record_type].decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidRecord(f"{record_type.__name__}: {error}") from error
    if record.schema > record_type.SCHEMA:
        raise InvalidRecord(
            f"{record_type.__name__}: expected schema <= {record_type.SCHEMA}, got {record.schema}"
        )
    return record
