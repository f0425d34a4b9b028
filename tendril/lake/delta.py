"""Delta Lake, as much of it as the lake needs: the only file that imports deltalake.

A commit is one file of the Delta log that appears whole or not at all, so a killed writer leaves
no torn table, only data files that nothing refers to. A commit may carry application transactions
(a name and a number); of two commits with one name that started from one version, the second is
refused with `CommitFailedError`.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import pyarrow as pa
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSelector, FileSystem, PyFileSystem

from tendril.lake.compaction import Group, NewFile
from tendril.lake.reading import aligned
from tendril.lake.results import LakeUnavailable
from tendril.lake.schema import TableSpec, properties

APPENDED = WriterProperties(
    compression="SNAPPY", default_column_properties=ColumnProperties(dictionary_enabled=False)
)
"""Half the time of `REWRITTEN`, for a quarter to a third more bytes until compaction."""
REWRITTEN = WriterProperties(compression="ZSTD", compression_level=1)

__all__ = ["CommitFailedError", "DeltaTable"]


def open_table(
    uri: str, options: Mapping[str, str], version: int | None = None
) -> DeltaTable | None:
    """The table as it is now, or was at `version`; None where there is none."""
    try:
        return DeltaTable(uri, version, dict(options))
    except TableNotFoundError:
        return None


def create_table(uri: str, options: Mapping[str, str], spec: TableSpec) -> None:
    """Make an empty table, unless there is one."""
    with suppress(CommitFailedError):  # another writer made it at the same moment
        DeltaTable.create(
            uri,
            spec.schema,
            mode="ignore",
            partition_by=list(spec.partition_by),
            configuration=properties(spec),
            storage_options=dict(options),
        )


def open_store(uri: str, options: Mapping[str, str]) -> FileSystem:
    """The files below a table."""
    return PyFileSystem(DeltaStorageHandler(uri, dict(options)))


def versions(delta: DeltaTable, app_ids: Iterable[str]) -> dict[str, int]:
    """The newest number of each application transaction, for those that have one."""
    found = {one: delta.transaction_version(one) for one in app_ids}
    return {one: version for one, version in found.items() if version is not None}


def write(delta: DeltaTable, rows: pa.Table, offsets: Mapping[str, int]) -> None:
    """Append rows, in one commit with these application transactions."""
    known = [field.name for field in delta.schema().fields]
    transactions = [Transaction(one, offset) for one, offset in offsets.items()]
    write_deltalake(
        delta,
        aligned(rows, known),
        mode="append",
        schema_mode=None if set(known) >= set(rows.column_names) else "merge",
        writer_properties=APPENDED,
        commit_properties=CommitProperties(app_transactions=transactions),
    )


def delete_where(delta: DeltaTable, predicate: str) -> None:
    """Rewrite the files with such rows without them, in one commit."""
    delta.delete(predicate, writer_properties=REWRITTEN, commit_properties=_rewrite(delta))


def replace_files(delta: DeltaTable, group: Group, new: NewFile) -> None:
    """Put one file in the place of several, in one commit."""
    now_ms, where = int(time.time() * 1e3), dict(group.partition)
    old = zip(group.files, group.sizes, strict=True)
    delta.create_write_transaction(
        [
            *(RemoveAction(path, False, now_ms, size, where) for path, size in old),
            AddAction(new.path, new.num_bytes, where, now_ms, False, new.stats),
        ],
        "append",
        arrow_schema(delta),
        list(group.partition),
        commit_properties=_rewrite(delta),
    )


def vacuum(
    delta: DeltaTable, store: FileSystem, hours: int, *, unreferenced: bool, dry_run: bool
) -> list[str]:
    """Remove data files that commits have replaced and, if asked, those that none ever named."""
    run = partial(delta.vacuum, hours, enforce_retention_duration=False, full=unreferenced)
    listed = run(dry_run=True)
    if not listed:
        return []
    there = {file.path for file in store.get_file_info(FileSelector("", recursive=True))}
    idle = [name for name in listed if name in there]  # the log goes on to list what has gone
    if idle and not dry_run:  # each vacuum is two commits, so none for nothing
        run(dry_run=False)
    return idle


def arrow_schema(delta: DeltaTable) -> pa.Schema:
    """Columns as they are now, those that newer versions added included."""
    return pa.schema(delta.schema().to_arrow())


def data_files(delta: DeltaTable) -> pa.Table:
    """Path, size_bytes, modification_time and `partition.*` of each file of the newest version."""
    return pa.table(delta.get_add_actions(flatten=True))


def partition_keys(delta: DeltaTable) -> list[dict[str, object]]:
    """Values of the partition columns, in their order, nulls last."""
    names = delta.metadata().partition_columns
    keys = data_files(delta).select([f"partition.{name}" for name in names]).rename_columns(names)
    distinct = keys.group_by(names, use_threads=False).aggregate([])
    return list(distinct.sort_by([(name, "ascending") for name in names]).to_pylist())


def _rewrite(delta: DeltaTable) -> CommitProperties:
    """Of two rewrites that started from one version, the second fails."""
    return CommitProperties(app_transactions=[Transaction("rewrite", delta.version() + 1)])


@contextmanager
def failures(table: str) -> Iterator[None]:
    """The store's failures as ours; those of a caller's mistake stay what they are."""
    try:
        yield
    except SchemaMismatchError:
        raise
    except (DeltaError, OSError) as error:
        raise LakeUnavailable(f"lake table {table}: {error}") from error
