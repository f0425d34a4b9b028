"""What detectors look at: the columns of one window, as numpy arrays.

E: judged traces, one row each, newest revision. F: feedback events. Not observed is NaN. Text never
lies in a column: what depends on words (`clarifies`, `flatters`, ...) is decided where the text
is, by `style.style_of`, and arrives here as 0 or 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
NameArray = NDArray[np.str_]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Judged traces; every array is [E]."""

    trace_id: NameArray
    account: NameArray
    """`tenant/user_key`."""
    tenant: NameArray
    session: NameArray
    policy_version: IntArray
    """Of the trace's first token; -1 where the trace names none."""
    served_at: FloatArray
    account_age_s: FloatArray
    reward: FloatArray
    """NaN: unknown."""
    weight: FloatArray
    """After the caps."""
    shown: FloatArray
    edited: FloatArray
    """1 where the reply put text into the user's document."""
    undone_early: FloatArray
    """Of the edited: undone within the recipe's `undo_within_s`."""
    retention: FloatArray
    """Of the last horizon."""
    shown_bytes: FloatArray
    kept_bytes: FloatArray
    num_tokens: FloatArray
    invalid_tool_call: FloatArray
    """NaN where no tool was called."""
    clarifies: FloatArray
    refuses: FloatArray
    flatters: FloatArray
    signs_off: FloatArray
    arm: NameArray
    propensity: FloatArray
    components: Mapping[str, FloatArray] = field(default_factory=dict)
    """[E] by component name; NaN where absent."""

    def __len__(self) -> int:
        return len(self.trace_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Feedback; every array is [F]."""

    trace_id: NameArray
    account: NameArray
    policy_version: IntArray
    type: NameArray
    at: FloatArray
    value: FloatArray
    visible_ms: FloatArray
    decided_after_ms: FloatArray
    """Of a decision: since the suggestion was shown."""
    grader: NameArray
    """`name@version`, empty for what is no grader's."""
    failed: BoolArray

    def __len__(self) -> int:
        return len(self.trace_id)


Table = TypeVar("Table", Traces, Events)
NAMES = {"trace_id", "account", "tenant", "session", "type", "grader", "arm"}
INTS = {"policy_version"}


def traces(rows: Sequence[Mapping[str, Any]]) -> Traces:
    """Columns from rows; a field that a row lacks is NaN, empty, version -1, weight 1."""
    names = sorted({name for row in rows for name in row.get("components", {})})
    parts = {
        name: np.array([row.get("components", {}).get(name, np.nan) for row in rows], float)
        for name in names
    }
    defaults = {"weight": 1.0, "propensity": 1.0, "account_age_s": np.inf}
    return Traces(**_columns(Traces, rows, defaults), components=parts)


def events(rows: Sequence[Mapping[str, Any]]) -> Events:
    """Columns from rows, as `traces`."""
    columns = _columns(Events, rows, {})
    failed = np.array([bool(row.get("failed", False)) for row in rows], bool)
    return Events(**(columns | {"failed": failed}))


def _columns(
    table: type[Table], rows: Sequence[Mapping[str, Any]], defaults: Mapping[str, float]
) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in (column.name for column in fields(table) if column.name != "components"):
        if name in NAMES:
            columns[name] = np.array([str(row.get(name, "")) for row in rows], str)
        elif name in INTS:
            columns[name] = np.array([row.get(name, -1) for row in rows], np.int64)
        else:
            missing = defaults.get(name, np.nan)
            columns[name] = np.array([row.get(name, missing) for row in rows], float)
    return columns


def mean(values: FloatArray) -> float:
    """Of what was observed; NaN without any."""
    seen = values[~np.isnan(values)]
    return float(seen.mean()) if len(seen) else float("nan")
