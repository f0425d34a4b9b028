"""`tendril config`: every setting, its value and where the value comes from."""

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tendril.settings import Settings, load_settings

Row = tuple[str, Any, str]


def print_config(file: Path | None, *, as_json: bool) -> None:
    """As a table, or as JSON with `value` and `origin` for each key."""
    rows = resolved(load_settings(file), file)
    if as_json:
        document = {key: {"value": value, "origin": origin} for key, value, origin in rows}
        json.dump(document, sys.stdout, indent=2)
        print()
        return
    table = Table("setting", "value", "from", box=None)
    for key, value, origin in rows:
        table.add_row(key, json.dumps(value), origin)
    Console(markup=False, emoji=False).print(table)


def resolved(settings: Settings, file: Path | None) -> list[Row]:
    """(dotted key, value, origin) for every setting."""
    variables = {name.upper() for name in os.environ}
    written = _flat(tomllib.loads(file.read_text())) if file else {}
    rows: list[Row] = []
    for key, value in _flat(settings.model_dump(mode="json")).items():
        variable = "TENDRIL_" + key.upper().replace(".", "__")
        whole_section = variable.partition("__")[0]  # its value is JSON
        if found := {variable, whole_section} & variables:
            origin = f"environment {max(found)}"
        else:
            origin = str(file) if key in written else "default"
        rows.append((key, "(hidden)" if is_secret(key) and value else value, origin))
    return rows


def is_secret(key: str) -> bool:
    """Whether a setting's value is shown to nobody: keys, and all that opens an object store."""
    return key.endswith("api_keys") or ".storage_options" in key


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
