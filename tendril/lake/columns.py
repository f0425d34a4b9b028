"""Values of one field as one Arrow column and back, nested fields flattened first."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from functools import cache
from itertools import chain, islice, pairwise
from typing import Any, TypeVar, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import astuple

from tendril.lake.schema import arrow_type, field_types, required

MAX_ELEMENTS = 2**31 - 1
"""Of one list column in one table: Arrow's list offsets are 32 bits."""
NUMBERS: Mapping[Any, Any] = {int: np.int64, float: np.float64, bool: np.bool_}
BATCH_ROWS = 256
"""Transposed at once: few enough to stay in the processor's cache."""
S = TypeVar("S", bound=msgspec.Struct)


def column(values: Sequence[Any], hint: Any) -> pa.Array:
    """`values` of a field of type `hint`, None where it may be.

    Raises `OverflowError` or `pa.ArrowInvalid` for an integer beyond 64 bits.
    """
    hint = required(hint)
    kind = arrow_type(hint)
    if values and values[0] is None and values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    if pa.types.is_map(kind):
        return _maps(values, *get_args(hint))
    if pa.types.is_list(kind):
        return _lists(values, get_args(hint)[0])
    if pa.types.is_struct(kind):
        return _structs(values, hint)
    return pa.array(values, kind)


def transposed(rows: Iterable[Sequence[Any]], num_columns: int) -> list[list[Any]]:
    """The columns of `rows`."""
    columns: list[list[Any]] = [[] for _ in range(num_columns)]
    rest = iter(rows)
    while some := list(islice(rest, BATCH_ROWS)):
        for whole, part in zip(columns, zip(*some, strict=True), strict=True):
            whole.extend(part)
    return columns


def _lists(values: Sequence[Any], element: Any) -> pa.Array:
    filled, nulls = _without_none(values, ())
    offsets = _offsets(filled)
    flat = _elements(chain.from_iterable(filled), element, int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=nulls)


def _elements(flat: Iterable[Any], element: Any, num_elements: int) -> pa.Array:
    if element in NUMBERS:
        return pa.array(np.fromiter(flat, NUMBERS[element], num_elements))
    return column(list(flat), element)


def _maps(values: Sequence[Any], key: Any, value: Any) -> pa.Array:
    keys = column(list(chain.from_iterable(values)), key)
    items = column(list(chain.from_iterable(map(dict.values, values))), value)
    return pa.MapArray.from_arrays(pa.array(_offsets(values)), keys, items)


def _structs(values: Sequence[Any], struct: Any) -> pa.Array:
    hints = field_types(struct)
    blank = (None,) * len(hints)
    nulls = _mask(values)
    rows = (blank if value is None else astuple(value) for value in values)
    parts = transposed(map(astuple, values) if nulls is None else rows, len(hints))
    columns = [column(part, hint) for part, hint in zip(parts, hints.values(), strict=True)]
    return pa.StructArray.from_arrays(columns, fields=list(arrow_type(struct)), mask=nulls)


def _without_none(values: Sequence[Any], empty: Any) -> tuple[Sequence[Any], pa.Array | None]:
    nulls = _mask(values)
    if nulls is None:
        return values, None
    return [empty if value is None else value for value in values], nulls


def _mask(values: Sequence[Any]) -> pa.Array | None:
    """True where a value is None; no mask where none is, which Arrow handles faster."""
    if None not in values:
        return None
    return pa.array([value is None for value in values])


def _offsets(values: Sequence[Sized]) -> np.ndarray[Any, np.dtype[np.int32]]:
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
    if len(ends) and ends[-1] > MAX_ELEMENTS:
        raise ValueError(f"expected at most {MAX_ELEMENTS} elements in one table, got {ends[-1]}")
    return np.concatenate(([0], ends)).astype(np.int32)


def values(array: pa.Array, hint: Any) -> list[Any]:
    """The values of a column of a field of type `hint`: what `column` was given."""
    hint = required(hint)
    kind = arrow_type(hint)
    if pa.types.is_map(kind):
        key, item = get_args(hint)
        pairs = zip(values(array.keys, key), values(array.items, item), strict=True)
        return _split(array, list(pairs), dict)
    if pa.types.is_list(kind):
        return _split(array, values(array.values, get_args(hint)[0]), tuple)
    if pa.types.is_struct(kind):
        hints = field_types(hint)
        named = zip(array.type.names, array.flatten(), strict=True)
        columns = {name: values(part, hints[name]) for name, part in named if name in hints}
        return _with_none(array, structs(hint, columns, len(array)))
    return list(array.to_pylist())


def structs(struct: type[S], columns: Mapping[str, Sequence[Any]], num_rows: int) -> list[S]:
    """One struct a row. A null where the type has none is the field's default: an older row."""
    filled = {name: _with_default(struct, name, column) for name, column in columns.items()}
    if not filled:
        return [struct() for _ in range(num_rows)]
    rows = zip(*filled.values(), strict=True)
    return [struct(**dict(zip(filled, row, strict=True))) for row in rows]


def _with_default(struct: type[msgspec.Struct], name: str, column: Sequence[Any]) -> Sequence[Any]:
    if name not in _defaults(struct) or None not in column:
        return column
    default = _defaults(struct)[name]
    return [default if value is None else value for value in column]


@cache
def _defaults(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """By field that is never None: its default, and for tuples nothing."""
    hints, found = field_types(struct), {}
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if required(hint) is not hint:
            continue
        if field.default is not msgspec.NODEFAULT:
            found[field.name] = field.default
        elif get_origin(hint) is tuple:
            found[field.name] = ()
    return found


def _split(array: pa.Array, flat: list[Any], kind: type[Any]) -> list[Any]:
    ends = array.offsets.to_numpy().tolist()
    return _with_none(array, [kind(flat[first:last]) for first, last in pairwise(ends)])


def _with_none(array: pa.Array, found: list[Any]) -> list[Any]:
    if not array.null_count:
        return found
    nulls = array.is_null().to_pylist()
    return [None if null else one for null, one in zip(nulls, found, strict=True)]
