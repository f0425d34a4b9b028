"""Wrong settings in words: where each stands, what was expected there, and what may be meant."""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tendril.settings import Settings
from tendril.words import plain

CLOSE = 0.8
"""Between whole names, which share their section's letters anyway."""


def explain_settings(error: ValidationError, file: Path | None) -> str:
    """One line. Values of keys are not repeated: they may be secrets."""
    return "; ".join(_wrong(dict(found), file) for found in error.errors())


def meant(key: str) -> str | None:
    """The setting that an unknown one is a slip of, in its own section first; None for no idea."""
    known = list(_keys(Settings))
    section, _, name = key.rpartition(".")
    siblings = {k.rpartition(".")[2]: k for k in known if k.rpartition(".")[0] == section}
    if close := get_close_matches(name, siblings, 1):
        return siblings[close[0]]
    namesakes = [k for k in known if k.rpartition(".")[2] == name]
    return next(iter(namesakes or get_close_matches(key, known, 1, CLOSE)), None)


def _wrong(error: Mapping[str, Any], file: Path | None) -> str:
    key = ".".join(map(str, error["loc"]))
    where = _origin(error["loc"], file)
    if error["type"] == "extra_forbidden":
        suggestion = meant(key)
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        return f"{where}: unknown setting {key}{hint}"
    got = "a value that is not shown" if _is_private(key) else f"{error['input']!r:.60}"
    return f"{where}: {key}: {plain(error['msg'])}, got {got}"


def _origin(place: Sequence[int | str], file: Path | None) -> str:
    """The variable or the file that says it; variables go first, as they do when it counts."""
    variable = "TENDRIL_" + "__".join(map(str, place)).upper()
    names = {variable, variable.partition("__")[0]}
    for name in os.environ:
        if name.upper() in names:
            return name
    if file is not None and str(place[0]) in tomllib.loads(file.read_text()):
        return str(file)
    return "settings"


def _is_private(key: str) -> bool:
    return "key" in key or "storage_options" in key


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, f"{prefix}{name}.")
