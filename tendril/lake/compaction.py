"""Which small files are rewritten as one, and the file that takes their place.

Why not delta-rs's own compaction: two of them at once both succeed there (1.6), and every row is
twice in the table. Ours commits under a name that a second rewrite cannot hold at the same time.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from tendril.lake.schema import TableSpec

TARGET_BYTES = 64 * 2**20
ROWS_A_GROUP = 131_072
"""Of Parquet's row groups: what a reader that looks for few rows reads at least."""


class Group(NamedTuple):
    """Files of one partition that become one."""

    partition: Mapping[str, str | None]
    files: tuple[str, ...]
    sizes: tuple[int, ...]


class NewFile(NamedTuple):
    """A data file that no commit names yet; `stats` is Delta's JSON."""

    path: str
    num_bytes: int
    stats: str


def groups(files: pa.Table, partition_by: Sequence[str]) -> Iterator[Group]:
    """Two or more small files of one partition, oldest first, up to `TARGET_BYTES` together.

    `files` as Delta lists them: path, size_bytes, modification_time, `partition.*`.
    """
    keys = [f"partition.{name}" for name in partition_by]
    order = [(name, "ascending") for name in (*keys, "modification_time", "path")]
    small = files.filter(pc.field("size_bytes") < TARGET_BYTES).sort_by(order)
    group = Group({}, (), ())
    for row in small.select([*keys, "path", "size_bytes"]).to_pylist():
        partition = {name: _as_text(row[key]) for name, key in zip(partition_by, keys, strict=True)}
        path, size = row["path"], row["size_bytes"]
        if partition != group.partition or sum(group.sizes) + size > TARGET_BYTES:
            if len(group.files) > 1:
                yield group
            group = Group(partition, (), ())
        group = Group(partition, (*group.files, path), (*group.sizes, size))
    if len(group.files) > 1:
        yield group


def rewrite(store: FileSystem, group: Group, spec: TableSpec, schema: pa.Schema) -> NewFile:
    """Write the rows of a group's files as one file beside them, in the table's order."""
    inside = pa.schema([field for field in schema if field.name not in spec.partition_by])
    old = ds.dataset(list(group.files), schema=inside, format="parquet", filesystem=store)
    rows = old.to_table().sort_by([(name, "ascending") for name in spec.order_by])
    path = f"{group.files[0].rpartition('/')[0]}/part-{uuid4()}-c000.zstd.parquet"
    with store.open_output_stream(path) as sink:
        pq.write_table(rows, sink, compression="zstd", row_group_size=ROWS_A_GROUP)
    return NewFile(path, store.get_file_info(path).size, json.dumps(_stats(rows, spec)))


def _stats(rows: pa.Table, spec: TableSpec) -> dict[str, Any]:
    """Ranges by which readers pass over a file; none for a column with a number JSON lacks."""
    low, high = {}, {}
    for name in spec.stats:
        found = pc.min_max(rows[name]).as_py()
        if rows.schema.field(name).type == pa.string() or found["min"] is None:
            continue
        if pa.types.is_floating(rows[name].type) and not _all_finite(rows[name]):
            continue
        low[name], high[name] = found["min"], found["max"]
    nulls = {name: rows[name].null_count for name in spec.stats}
    return {"numRecords": rows.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _all_finite(column: pa.ChunkedArray) -> bool:
    total = pc.sum(pc.abs(column)).as_py()
    return total is None or math.isfinite(total)


def _as_text(value: object) -> str | None:
    return None if value is None else str(value)
