"""The lake: what the log held, as Delta tables that SQL and training read.

Tables, one folder each below the lake's root (a folder, or an `s3://` URI): `traces`, `feedback`,
`episodes`, `quarantine`, `ledger`. Arrow and Delta are imported when a lake is opened, not before:
serving starts without them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from tendril.settings import Settings

if TYPE_CHECKING:
    from tendril.lake.lake import Lake


def open_lake(settings: Settings) -> "Lake":
    """The lake of the settings; nothing is made before the first append."""
    from tendril.lake.lake import Lake

    return Lake(lake_root(settings), settings.lake.storage_options)


def lake_root(settings: Settings) -> str:
    """Where it is: a URI as it stands, a folder below the workspace."""
    root = settings.lake.root
    return root if "://" in root else str(settings.path(Path(root)))


__all__ = ["lake_root", "open_lake"]
