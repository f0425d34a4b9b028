"""SQL over the lake: read only, one statement, nothing but the lake's tables.

The only file that imports DuckDB. It sees each Delta table as an Arrow dataset, so a condition on
`day`, `user_bucket` or a time opens only the files that can hold such rows. `episodes` has every
revision that nothing held back, `quarantine` those that something did, `episodes_latest` the newest
of each trace (`quarantine_ids` says what holds it now). DuckDB itself may open no file and no
address, and its settings are locked.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import duckdb
import pyarrow.dataset as ds

from tendril.lake.lake import Lake
from tendril.lake.results import LakeUnavailable, QueryRefused
from tendril.lake.schema import table_specs

ROWS_A_FETCH = 1_000
LATEST = """
CREATE VIEW episodes_latest AS
SELECT * FROM (SELECT * FROM episodes UNION ALL BY NAME SELECT * FROM quarantine)
QUALIFY row_number() OVER (
    PARTITION BY day, user_bucket, coalesce(trace_id, episode_id)
    ORDER BY revision DESC, closed_at DESC, episode_id DESC
) = 1
"""
"""All revisions of a trace have its day and user: a condition on these passes the window."""
READS = ("SELECT", "EXPLAIN")


class Answer(NamedTuple):
    """Names of the columns, and the rows as they come."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


def query(lake: Lake, sql: str) -> Answer:
    """The answer of one SELECT. Raises `QueryRefused` or `LakeUnavailable`, also on a later row."""
    with _connection() as parser:
        _check(parser, sql)
    connection = connect(lake, sql)
    try:
        result = connection.execute(sql)
        columns = tuple(column[0] for column in result.description or ())
    except duckdb.Error as error:
        connection.close()
        raise _refusal(error) from error
    return Answer(columns, _rows(connection))


def rows_of(lake: Lake, sql: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All rows of a query of our own, as a numpy array a column (masked where something is null).

    Raises `LakeUnavailable`.
    """
    with connect(lake, sql) as connection:
        try:
            return dict(connection.execute(sql, dict(parameters)).fetchnumpy())
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            raise _refusal(error) from error


def connect(lake: Lake, sql: str) -> duckdb.DuckDBPyConnection:
    """A connection that sees the lake's tables and nothing else; absent ones are empty.

    Only tables that `sql` names are opened: each costs a walk through its Delta log.
    """
    connection, said = _connection(), sql.lower()
    if "episodes_latest" in said:
        said += " quarantine"
    for name, spec in table_specs().items():
        dataset = lake.dataset(name) if name in said else None
        connection.register(
            name, ds.dataset(spec.schema.empty_table()) if dataset is None else dataset
        )
    connection.execute(LATEST)
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        },
    )


def _check(parser: duckdb.DuckDBPyConnection, sql: str) -> None:
    try:
        statements = parser.extract_statements(sql)
    except duckdb.Error as error:
        raise _refusal(error) from error
    if len(statements) != 1 or statements[0].type.name not in READS:
        got = ", ".join(statement.type.name for statement in statements) or "none"
        raise QueryRefused(f"expected one SELECT, got {got}")


def _rows(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    with connection:
        while True:
            try:
                rows = connection.fetchmany(ROWS_A_FETCH)
            except duckdb.Error as error:
                raise _refusal(error) from error
            if not rows:
                return
            yield from rows


def _refusal(error: duckdb.Error) -> QueryRefused | LakeUnavailable:
    if isinstance(error, duckdb.IOException | duckdb.InvalidInputException):
        return LakeUnavailable(f"lake: a file could not be read, ask again: {error}")
    if isinstance(error, duckdb.CatalogException) and "Table with name" in str(error):
        tables = ", ".join((*table_specs(), "episodes_latest"))
        return QueryRefused(f"{str(error).splitlines()[0]} Tables: {tables}")
    return QueryRefused(str(error))
