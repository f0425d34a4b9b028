"""Hypothesis strategies for every record type, made from the fields' own types."""

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from tendril.records import PolicySpan, Record, Segment, Trace

MAX_TOKENS = 4
PER_TOKEN = ("completion_token_ids", "behavior_logprobs", "token_bytes", "loss_mask", "credit")
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    NoneType: st.none(),
}


def records(record_type: type[Record]) -> st.SearchStrategy[Record]:
    """Valid records of one type, all fields drawn."""
    return _struct(record_type)


def _struct(struct: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    if struct in (Trace, Segment):
        return st.integers(0, MAX_TOKENS).flatmap(lambda n: _fields(struct, n))
    return _fields(struct, None)


def _fields(struct: type[msgspec.Struct], num_tokens: int | None) -> st.SearchStrategy[Any]:
    hints = get_type_hints(struct)
    drawn = {
        name: _value(hints[name], num_tokens if name in PER_TOKEN else None)
        for name in struct.__struct_fields__
    }
    if issubclass(struct, Record):
        drawn["schema"] = st.just(struct.SCHEMA)
    if num_tokens is not None:
        drawn["policy_spans"] = _spans(num_tokens)
    return st.fixed_dictionaries(drawn).map(lambda fields: struct(**fields))


@st.composite
def _spans(draw: st.DrawFn, num_tokens: int) -> tuple[PolicySpan, ...]:
    cut = draw(st.integers(0, num_tokens))
    sizes = [n for n in (cut, num_tokens - cut) if n]
    return tuple(PolicySpan(policy_version=i, num_tokens=n) for i, n in enumerate(sizes))


def _value(hint: Any, size: int | None) -> st.SearchStrategy[Any]:
    if hint in SCALARS:
        return SCALARS[hint]
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(parts)
    if origin in (Union, UnionType):
        return st.one_of(*(_value(part, size) for part in parts))
    if origin is tuple and parts[-1] is Ellipsis:
        low, high = (0, 3) if size is None else (size, size)
        return st.lists(_value(parts[0], None), min_size=low, max_size=high).map(tuple)
    if origin is tuple:
        return st.tuples(*(_value(part, None) for part in parts))
    if origin is dict:
        return st.dictionaries(_value(parts[0], None), _value(parts[1], None), max_size=3)
    return _struct(hint)
