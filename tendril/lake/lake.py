"""The lake: append once, delete for good, compact, read in a defined order.

Appends carry the log offsets they cover as application transactions of the same commit, so rows
and offsets cannot differ; where two writers hold the same offsets, the second is refused
(`OffsetsMoved`). Rewrites (a deletion, a compaction) give way to one another and never to appends.
"""

import math
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import FileSystem

from tendril.lake.compaction import Group, groups, rewrite
from tendril.lake.delta import (
    CommitFailedError,
    DeltaTable,
    arrow_schema,
    create_table,
    data_files,
    delete_where,
    failures,
    open_store,
    open_table,
    partition_keys,
    replace_files,
    vacuum,
    versions,
    write,
)  # fmt: skip
from tendril.lake.offsets import is_done
from tendril.lake.reading import in_partition, of_users, of_users_sql, ordered, with_all_columns
from tendril.lake.results import Compacted, Deleted, LakeUnavailable
from tendril.lake.schema import table_spec

MAX_TRIES = 20
RETRY_S = 0.05
HOUR_S = 3_600.0


class Lake:
    """The tables below one root. One object serves one thread."""

    def __init__(self, root: str, storage_options: Mapping[str, str] | None = None) -> None:
        """`root` is a folder or a URI; nothing is read or made yet."""
        self._root = root.rstrip("/")
        self._options = dict(storage_options or {})
        self._open: dict[str, DeltaTable] = {}

    def committed(self, table: str, app_ids: Iterable[str]) -> dict[str, int]:
        """The next offset by application id, for those that have one. Raises `LakeUnavailable`."""
        with failures(table):
            delta = self._latest(table)
            return {} if delta is None else versions(delta, app_ids)

    def append(
        self,
        table: str,
        rows: pa.Table,
        offsets: Mapping[str, int],
        after: Mapping[str, int] | None = None,
    ) -> bool:
        """Add rows and move `offsets` (next offset by application id) in one commit.

        False, and nothing is added, where all of `offsets` were committed before. `after`: what
        `committed` said when the rows were made; if that is no longer so, raises `OffsetsMoved`.
        Raises `LakeUnavailable`; then it is unknown whether the commit happened: call again.
        """
        for attempt in range(MAX_TRIES):
            with failures(table):
                delta = self._latest(table) or self._create(table)
                held = versions(delta, offsets)
                if is_done(table, held, offsets, held if after is None else after):
                    return False
                after = held
                try:
                    write(delta, rows, offsets)
                    return True
                except CommitFailedError:
                    self._wait(table, attempt)
        raise LakeUnavailable(f"lake table {table}: {MAX_TRIES} commits in a row met another one")

    def delete(self, table: str, user_keys: Collection[str]) -> Deleted:
        """Remove the rows of these users, and every data file that held them. Repeatable.

        Older versions of the table can no longer be read. Raises `LakeUnavailable`.
        """
        with failures(table):
            delta = self._latest(table)
            if delta is None or not user_keys:
                return Deleted(0, 0, (), 0)
            before = left = _num_rows(delta, user_keys)
            for attempt in range(MAX_TRIES):
                if not left:
                    break
                try:
                    delete_where(delta, of_users_sql(user_keys))
                except CommitFailedError:
                    self._wait(table, attempt)
                delta = self._reopened(table)
                left = _num_rows(delta, user_keys)
            files = vacuum(delta, self._store(table), 0, unreferenced=False, dry_run=False)
            idle = vacuum(delta, self._store(table), 0, unreferenced=True, dry_run=True)
            return Deleted(before, left, tuple(files), len(idle))

    def compact(self, table: str) -> Compacted:
        """Rewrite small files as few. Readers and writers go on meanwhile."""
        num_before = num_after = 0
        for _ in range(MAX_TRIES):
            with failures(table):
                delta = self._latest(table)
                if delta is None:
                    break
                for group in groups(data_files(delta), table_spec(table).partition_by):
                    if not self._replace(table, group):
                        break
                    num_before, num_after = num_before + len(group.files), num_after + 1
                else:
                    break
        return Compacted(num_before, num_after)

    def _replace(self, table: str, group: Group) -> bool:
        """Put one file in the place of several; False where another rewrite came first."""
        delta, store = self._open[table], self._store(table)
        try:
            new = rewrite(store, group, table_spec(table), arrow_schema(delta))
        except FileNotFoundError:  # a deletion has removed them
            self._open.pop(table)
            return False
        try:
            replace_files(delta, group, new)
        except CommitFailedError:
            store.delete_file(new.path)  # it may hold what a deletion has just removed
            self._open.pop(table)
            return False
        delta.update_incremental()
        return True

    def vacuum(self, table: str, keep_s: float, *, dry_run: bool = False) -> list[str]:
        """Delete data files that no commit names, older than `keep_s` (rounded up to hours).

        Below the longest running append or query it takes files that are still being written or
        read: give at least an hour, unless nothing else runs. Returns their names.
        """
        with failures(table):
            delta = self._latest(table)
            if delta is None:
                return []
            hours = math.ceil(keep_s / HOUR_S)
            return vacuum(delta, self._store(table), hours, unreferenced=True, dry_run=dry_run)

    def num_files(self, table: str) -> int:
        """Data files that a reader of the whole table opens now."""
        with failures(table):
            delta = self._latest(table)
            return 0 if delta is None else len(delta.file_uris())

    def num_partitions(self, table: str) -> int:
        """Partitions that have a row: what `num_files` comes to once all is compacted."""
        with failures(table):
            delta = self._latest(table)
            return 0 if delta is None else len(partition_keys(delta))

    def version(self, table: str) -> int | None:
        """Number of the newest commit; None where the table does not exist."""
        with failures(table):
            delta = self._latest(table)
            return None if delta is None else delta.version()

    def dataset(self, table: str, version: int | None = None) -> ds.Dataset | None:
        """What SQL reads: partitions and ranges prune files; None where there is no table."""
        with failures(table):
            delta = self._latest(table)
            if delta is None:
                return None
            if version is not None:
                delta = open_table(self._uri(table), self._options, version) or delta
            return with_all_columns(delta.to_pyarrow_dataset(), table_spec(table).schema)

    def read(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        version: int | None = None,
    ) -> pa.Table:
        """Rows in a fixed order, whatever files they lie in: partitions, then `order_by`.

        An absent table is an empty one. `version`: as of that commit, as far as its files are kept.
        """
        spec, dataset = table_spec(table), self.dataset(table, version)
        if dataset is None:
            empty = spec.schema.empty_table()
            return empty if columns is None else empty.select(list(columns))
        with failures(table):
            return ordered(dataset, spec, columns, where)

    def partitions(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
    ) -> Iterator[pa.Table]:
        """The same rows in the same order, one partition at a time, all of one version."""
        with failures(table):
            delta = self._latest(table)
            if delta is None:
                return
            dataset, keys = delta.to_pyarrow_dataset(), partition_keys(delta)
        for key in keys:
            here = in_partition(key)
            with failures(table):
                rows = ordered(
                    dataset, table_spec(table), columns, here if where is None else here & where
                )
            if rows.num_rows:
                yield rows

    def _uri(self, table: str) -> str:
        return f"{self._root}/{table_spec(table).name}"

    def _store(self, table: str) -> FileSystem:
        return open_store(self._uri(table), self._options)

    def _latest(self, table: str) -> DeltaTable | None:
        """The table at its newest version, or None."""
        if table in self._open:
            self._open[table].update_incremental()
        elif found := open_table(self._uri(table), self._options):
            self._open[table] = found
        return self._open.get(table)

    def _reopened(self, table: str) -> DeltaTable:
        """The table without what this process remembers of it."""
        self._open.pop(table, None)
        delta = self._latest(table)
        if delta is None:
            raise LakeUnavailable(f"lake table {table}: it was removed")
        return delta

    def _create(self, table: str) -> DeltaTable:
        create_table(self._uri(table), self._options, table_spec(table))
        return self._reopened(table)

    def _wait(self, table: str, attempt: int) -> None:
        """Before a next try: longer each time, and never in step with the other writer."""
        self._open.pop(table, None)
        time.sleep(RETRY_S * min(attempt + 1, 10) * random.random())


def _num_rows(delta: DeltaTable, user_keys: Collection[str]) -> int:
    return int(delta.to_pyarrow_dataset().count_rows(filter=of_users(user_keys)))
