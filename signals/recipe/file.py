"""Reads a recipe from its TOML file."""

import tomllib
from importlib import resources
from pathlib import Path

import msgspec

from signals.recipe.tables import Recipe


def load_recipe(path: Path | None) -> Recipe:
    """The recipe in `path`, or the packaged default for None.

    Raises `OSError` for an unreadable file and `ValueError` naming file and key for anything that
    is not a recipe, unknown keys included.
    """
    source = path or resources.files("signals") / "default_recipe.toml"
    try:
        content = tomllib.loads(source.read_text(encoding="utf-8"))
        if path is not None and isinstance(name := content.get("learned"), str):
            content["learned"] = msgspec.json.decode((path.parent / name).read_bytes())
        return msgspec.convert(content, Recipe)
    except (ValueError, msgspec.ValidationError) as error:
        raise ValueError(f"recipe {source}: {error}") from error
