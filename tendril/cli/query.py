"""`tendril query`: SQL over the lake, as a table, JSON or CSV."""

import csv
import sys
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table

from tendril.lake import open_lake
from tendril.lake.query import Answer, query
from tendril.settings import load_settings

MAX_TABLE_ROWS = 1_000
Form = Literal["table", "json", "csv"]


def print_query(file: Path | None, sql: str, *, form: Form) -> None:
    """Print what `sql` selects; a table ends after `MAX_TABLE_ROWS` rows and says so."""
    answer = query(open_lake(load_settings(file)), sql)
    if form == "json":
        _print_json(answer)
    elif form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(answer.columns)
        writer.writerows(answer.rows)
    else:
        _print_table(answer)


def _print_json(answer: Answer) -> None:
    """A list of objects, a line each, written as they come; numbers that JSON lacks are null."""
    before = "["
    for row in answer.rows:
        document = msgspec.json.encode(dict(zip(answer.columns, row, strict=True)), enc_hook=str)
        print(before + document.decode())
        before = ","
    print("]" if before == "," else "[]")


def _print_table(answer: Answer) -> None:
    table = Table(*answer.columns, box=None)
    for row in islice(answer.rows, MAX_TABLE_ROWS):
        table.add_row(*("" if value is None else str(value) for value in row))
    Console(markup=False, emoji=False).print(table)
    if next(answer.rows, None) is not None:
        print(f"only the first {MAX_TABLE_ROWS} rows: --csv prints all", file=sys.stderr)
