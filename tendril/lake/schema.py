"""The Arrow schema of each table, made from the records' own fields, so that the two cannot differ.

A field becomes a column of its name: integers 64 bits, numbers float64 (log-probs come back
bit-equal), text, lists, structs, and maps for dicts. In front stand the partition columns: `day`
(UTC; of `served_at`, `ingested_at` or `at`; null where that is no time from 2000 to 2100, as a
forged one would otherwise make partitions without end) and `user_bucket` (0 to 15, from the
user's key, so that erasing one user rewrites a sixteenth). Traces and feedback also say where on
the log they were, episodes the trace that they are about.
"""

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import pyarrow as pa

from tendril.lake.results import UnknownTable
from tendril.records import Episode, Feedback, Ledger, Record, Trace

NUM_BUCKETS = 16
DAY = pa.field("day", pa.date32())
BUCKET = pa.field("user_bucket", pa.int8())
PLACE = (
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int64()),
    pa.field("offset", pa.int64()),
    pa.field("appended_at", pa.float64()),
)
SCALARS: Mapping[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}


class TableSpec(NamedTuple):
    """One table: its columns, how it is partitioned, and the order in which it is read."""

    name: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    order_by: tuple[str, ...]
    """After the partition columns; unique together for rows that are not repeats."""
    stats: tuple[str, ...]
    """Columns whose range per file the Delta log holds. Never one that names a user or a trace:
    the log outlives a deletion."""


@cache
def table_specs() -> Mapping[str, TableSpec]:
    """Every table by name."""
    placed = ("topic", "partition", "offset")
    revised = ("served_at", "trace_id", "revision", "episode_id")
    episode = (DAY, BUCKET, pa.field("trace_id", pa.string()), *fields_of(Episode))
    by_user = (DAY.name, BUCKET.name)
    specs = (
        TableSpec(
            "traces", pa.schema((DAY, BUCKET, *PLACE, *fields_of(Trace))), by_user, placed,
            ("served_at", "appended_at", "partition", "offset"),
        ),
        TableSpec(
            "feedback", pa.schema((DAY, BUCKET, *PLACE, *fields_of(Feedback))), by_user, placed,
            ("ingested_at", "appended_at", "partition", "offset"),
        ),
        TableSpec(
            "episodes", pa.schema(episode), by_user, revised,
            ("served_at", "closed_at", "reward", "revision"),
        ),
        TableSpec(
            "quarantine", pa.schema(episode), by_user, revised,
            ("served_at", "closed_at", "reward", "revision"),
        ),
        TableSpec(
            "ledger", ledger_schema(), (DAY.name,), ("at", "process", "node", "kind", "outcome"),
            ("at",),
        ),
    )  # fmt: skip
    return {spec.name: spec for spec in specs}


def table_spec(name: str) -> TableSpec:
    """The table of that name; raises `UnknownTable`."""
    specs = table_specs()
    if name not in specs:
        raise UnknownTable(f"no lake table {name!r}: expected one of {', '.join(specs)}")
    return specs[name]


def properties(spec: TableSpec) -> dict[str, str]:
    """Delta's own settings of a table, written when it is made."""
    return {
        "delta.dataSkippingStatsColumns": ",".join(spec.stats),
        "delta.checkpointInterval": "50",
        # Older versions cannot be read: as-of reads go by `closed_at` instead.
        "delta.logRetentionDuration": "interval 1 days",
        "delta.enableExpiredLogCleanup": "true",
        "delta.deletedFileRetentionDuration": "interval 1 days",
    }


def ledger_schema() -> pa.Schema:
    """One row an outcome: a ledger's dicts as lines, which SQL can sum."""
    assert {"process", "node", "at", "read", "outcomes"} <= set(Ledger.__struct_fields__)
    text, count = pa.string(), pa.int64()
    return pa.schema((
        DAY, pa.field("process", text), pa.field("node", text), pa.field("at", pa.float64()),
        pa.field("kind", text), pa.field("read", count), pa.field("outcome", text),
        pa.field("count", count),
    ))  # fmt: skip


@cache
def fields_of(record: type[Record]) -> tuple[pa.Field, ...]:
    """A column for each field, in the record's order."""
    hints = field_types(record)
    return tuple(pa.field(name, arrow_type(hint)) for name, hint in hints.items())


@cache
def field_types(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The type of each field, in order."""
    hints = get_type_hints(struct)
    return {name: hints[name] for name in struct.__struct_fields__}


def arrow_type(hint: Any) -> pa.DataType:
    """The column type of a field's type; raises `TypeError` for one that has none."""
    hint = required(hint)
    if hint in SCALARS:
        return SCALARS[hint]
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return pa.string()
    if origin is tuple:
        return pa.list_(arrow_type(parts[0]))
    if origin is dict:
        return pa.map_(arrow_type(parts[0]), arrow_type(parts[1]))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        columns = field_types(hint).items()
        return pa.struct([pa.field(name, arrow_type(part)) for name, part in columns])
    raise TypeError(f"no column type for {hint}")


def required(hint: Any) -> Any:
    """The type without its `| None`."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    (part,) = (part for part in get_args(hint) if part is not NoneType)
    return part
