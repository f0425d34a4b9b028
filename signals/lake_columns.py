"""Between the lake's columns and numpy's: nulls, and the days at which a read begins and ends."""

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray


def numbers(values: Any) -> NDArray[np.float64]:
    """A column of `rows_of` as float64 [N]; what is null becomes NaN."""
    filled: NDArray[np.float64] = np.ma.array(values, dtype=np.float64).filled(np.nan)  # type: ignore[no-untyped-call]
    return filled


def day_of(at: float) -> date:
    """The lake's partition of a moment (UTC)."""
    return datetime.fromtimestamp(at, UTC).date()
