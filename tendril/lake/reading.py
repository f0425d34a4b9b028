"""How rows are picked and ordered: the same rows in the same order, whatever files they lie in."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tendril.lake.rows import user_bucket
from tendril.lake.schema import TableSpec


def ordered(
    dataset: ds.Dataset,
    spec: TableSpec,
    columns: Sequence[str] | None,
    where: pc.Expression | None,
) -> pa.Table:
    """Rows by partition columns, then `order_by`; of all columns, or of `columns` in that order."""
    order = [*spec.partition_by, *spec.order_by]
    needed = None if columns is None else list(dict.fromkeys([*columns, *order]))
    rows = dataset.to_table(columns=needed, filter=where)
    rows = rows.sort_by([(name, "ascending") for name in order])
    return rows if columns is None else rows.select(list(columns))


def aligned(rows: pa.Table, names: Iterable[str]) -> pa.Table:
    """`rows` with null columns for those of `names` that they lack; new ones stay, at the end."""
    for name in names:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows


def in_partition(key: Mapping[str, object]) -> pc.Expression:
    """Rows whose partition columns have these values, null included."""
    parts = [
        pc.field(name).is_null() if value is None else pc.field(name) == pc.scalar(value)
        for name, value in key.items()
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole &= part
    return whole


def of_users(user_keys: Collection[str]) -> pc.Expression:
    """Rows of these users; only their buckets are opened."""
    buckets = sorted({user_bucket(key) for key in user_keys})
    return pc.field("user_bucket").isin(buckets) & pc.field("user_key").isin(sorted(user_keys))


def of_users_sql(user_keys: Collection[str]) -> str:
    """The same in SQL, by digest: the Delta log keeps the text, and must not name the users."""
    digests = defaultdict(list)
    for key in sorted(user_keys):
        digests[user_bucket(key)].append(f"'{sha256(key.encode()).hexdigest()}'")
    return " OR ".join(
        f"(user_bucket = {bucket} AND encode(sha256(user_key), 'hex') IN ({', '.join(listed)}))"
        for bucket, listed in sorted(digests.items())
    )


def with_all_columns(dataset: ds.Dataset, schema: pa.Schema) -> ds.Dataset:
    """The dataset with null columns for those that no append has brought yet."""
    missing = [field for field in schema if field.name not in dataset.schema.names]
    if not missing:
        return dataset
    return dataset.replace_schema(pa.schema([*dataset.schema, *missing]))
