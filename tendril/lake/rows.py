"""Records as Arrow tables, a column at a time, and back.

The lake keeps no words, but token ids are words to whoever has the tokenizer. So rows of users
without `train_consent` keep none of them: prompt and completion ids, per-token numbers, routed
experts and stop strings are null. `train_consent` alone keeps them, as training needs them;
`content_consent` is about the words themselves, which are in no record.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import astuple, replace

from tendril.lake.columns import column, structs, transposed, values
from tendril.lake.schema import NUM_BUCKETS, PLACE, field_types, table_specs
from tendril.log import LogRecord
from tendril.records import (
    Episode,
    Feedback,
    InvalidRecord,
    Ledger,
    Record,
    Sampling,
    Segment,
    Trace,
)

DAY_S = 86_400.0
FIRST_DAY, LAST_DAY = 10_957, 47_481
"""2000-01-01 and 2099-12-31, in days since 1970."""
TOKENS = {
    "prompt_token_ids", "completion_token_ids", "behavior_logprobs", "token_bytes", "loss_mask",
    "credit", "routed_experts", "stop",
}  # fmt: skip
NO_OUTCOME: Mapping[str | None, int] = {None: 0}
R = TypeVar("R", Trace, Feedback, Episode)


class UnstorableRecords(InvalidRecord):
    """Records with a number that no column holds; `indices` says which of those given."""

    def __init__(self, indices: Sequence[int], reason: str) -> None:
        super().__init__(reason)
        self.indices = indices


def traces_to_arrow(traces: Sequence[Trace], places: Sequence[LogRecord]) -> pa.Table:
    """Rows of `traces`; `places` are the log records they came in. Raises `UnstorableRecords`."""
    return _table("traces", Trace, traces, "served_at", _places(traces, places))


def feedback_to_arrow(feedback: Sequence[Feedback], places: Sequence[LogRecord]) -> pa.Table:
    """Rows of `feedback`; `places` are the log records they came in. Raises `UnstorableRecords`."""
    return _table("feedback", Feedback, feedback, "ingested_at", _places(feedback, places))


def episodes_to_arrow(episodes: Sequence[Episode]) -> pa.Table:
    """Rows of `episodes`. Raises `UnstorableRecords`."""
    return _table("episodes", Episode, episodes, "served_at", _first_traces(episodes))


def quarantined_to_arrow(episodes: Sequence[Episode]) -> pa.Table:
    """Rows of `quarantine`. Raises `UnstorableRecords`."""
    return _table("quarantine", Episode, episodes, "served_at", _first_traces(episodes))


def ledgers_to_arrow(ledgers: Sequence[Ledger]) -> pa.Table:
    """Rows of `ledger`: one for each outcome of each kind; a kind without any has count 0."""
    lines = [
        (ledger.process, ledger.node, ledger.at, kind, read, outcome, count)
        for ledger in ledgers
        for kind, read in ledger.read.items()
        for outcome, count in (ledger.outcomes.get(kind) or NO_OUTCOME).items()
    ]
    schema = table_specs()["ledger"].schema
    values = zip(*lines, strict=True) if lines else [()] * (len(schema) - 1)
    columns = [
        pa.array(column, field.type) for column, field in zip(values, list(schema)[1:], strict=True)
    ]
    return pa.table([days([line[2] for line in lines]), *columns], schema=schema)


def from_arrow(record_type: type[R], rows: pa.Table) -> list[R]:
    """The records of rows; columns that older rows lack have the field's default."""
    hints = field_types(record_type)
    columns: dict[str, Sequence[Any]] = {
        name: values(rows[name].combine_chunks(), hint)
        for name, hint in hints.items()
        if name in rows.column_names
    }
    if record_type is Trace:
        pairs = zip(columns["policy_spans"], columns["completion_token_ids"], strict=True)
        columns["policy_spans"] = [() if ids is None else spans for spans, ids in pairs]
    return structs(record_type, columns, rows.num_rows)


def without_tokens(record: R) -> R:
    """What comes back of a record of a user without `train_consent`: all but its tokens."""
    if record.train_consent is not False or isinstance(record, Feedback):
        return record
    if isinstance(record, Episode):
        segments = tuple(replace(part, **_empty(Segment)) for part in record.segments)
        return replace(record, segments=segments)
    sampling = replace(record.sampling, stop=())
    return replace(record, sampling=sampling, policy_spans=(), routed_experts=None, **_empty(Trace))


def _empty(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return dict.fromkeys(TOKENS & set(struct.__struct_fields__) - {"routed_experts"}, ())


def days(times: Sequence[float] | pa.Array) -> pa.Array:
    """The UTC day of each time; null where it is no time from 2000 to 2100."""
    numbers = np.floor(np.asarray(times, dtype=np.float64) / DAY_S)
    known = (numbers >= FIRST_DAY) & (numbers <= LAST_DAY)
    return pa.array(np.where(known, numbers, 0).astype(np.int32), mask=~known).cast(pa.date32())


def user_bucket(user_key: str) -> int:
    """The partition of one user, in every table."""
    return crc32(user_key.encode()) % NUM_BUCKETS


def _buckets(user_keys: pa.Array) -> pa.Array:
    users = user_keys.dictionary_encode()
    buckets = [user_bucket(key) for key in users.dictionary.to_pylist()]
    return pa.array(buckets, pa.int8()).take(users.indices)


def _places(records: Sequence[Record], places: Sequence[LogRecord]) -> dict[str, pa.Array]:
    if len(records) != len(places):
        raise ValueError(f"expected a place for each record, got {len(places)} for {len(records)}")
    columns = zip(LogRecord._fields, transposed(places, len(LogRecord._fields)), strict=True)
    kinds = {field.name: field.type for field in PLACE}
    return {name: pa.array(values, kinds[name]) for name, values in columns if name in kinds}


def _first_traces(episodes: Sequence[Episode]) -> dict[str, pa.Array]:
    traces = [episode.segments[0].trace_id if episode.segments else None for episode in episodes]
    return {"trace_id": pa.array(traces, pa.string())}


def _table(
    name: str,
    record_type: type[Record],
    records: Sequence[Any],
    time: str,
    more: dict[str, pa.Array],
) -> pa.Table:
    try:
        columns = _columns(record_type, records) | more
    except (pa.ArrowException, OverflowError) as error:
        raise UnstorableRecords(_unstorable(record_type, records), str(error)) from error
    columns |= {"day": days(columns[time]), "user_bucket": _buckets(columns["user_key"])}
    schema = table_specs()[name].schema
    return pa.table([columns[field.name] for field in schema], schema=schema)


def _columns(record_type: type[Record], records: Sequence[Any]) -> dict[str, pa.Array]:
    hints = field_types(record_type)
    fields = transposed(map(astuple, records), len(hints))
    columns: dict[str, Sequence[Any]] = dict(zip(hints, fields, strict=True))
    if record_type is not Feedback:
        columns |= _withheld(columns)
    return {name: column(columns[name], hint) for name, hint in hints.items()}


def _withheld(columns: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """The columns that hold tokens, without those of users who did not consent to training."""
    consents = columns["train_consent"]
    if all(consents):
        return {}
    withheld: dict[str, Sequence[Any]] = {
        name: [value if may else None for value, may in zip(columns[name], consents, strict=True)]
        for name in TOKENS & columns.keys()
    }
    for name, strip in (("segments", _strip_segments), ("sampling", _strip_sampling)):
        if name in columns:
            pairs = zip(columns[name], consents, strict=True)
            withheld[name] = [value if may else strip(value) for value, may in pairs]
    return withheld


def _strip_segments(segments: tuple[Segment, ...]) -> list[Segment]:
    nothing: dict[str, Any] = dict.fromkeys(TOKENS & set(Segment.__struct_fields__))
    return [replace(segment, **nothing) for segment in segments]


def _strip_sampling(sampling: Sampling) -> Sampling:
    nothing: dict[str, Any] = {"stop": None}
    return replace(sampling, **nothing)


def _unstorable(record_type: type[Record], records: Sequence[Any]) -> list[int]:
    indices = []
    for index, record in enumerate(records):
        try:
            _columns(record_type, [record])
        except (pa.ArrowException, OverflowError):
            indices.append(index)
    return indices
