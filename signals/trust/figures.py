"""What a window's traces measure, with standard errors by account, and how that compares.

One user's rows resemble each other, so errors are those of a mean of clusters: with residuals e,
se = sqrt(sum over accounts of (sum of e)^2) / n (the linearised cluster-robust variance).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from signals.trust.columns import BoolArray, FloatArray, NameArray, Traces

MAD_LIMIT = 4.0
ERROR_LIMIT = 4.0
"""Standard errors: a small window moves by chance further than the windows of history did."""
MIN_WINDOWS = 24


class Measured(NamedTuple):
    """A mean, its standard error and the rows behind it."""

    value: float
    error: float
    num_rows: int


class Baseline(NamedTuple):
    """What the windows of the past week say a figure is."""

    median: float
    mad: float
    num_windows: int


def measured(values_N: FloatArray, clusters_N: NameArray) -> Measured:
    """Mean of what was observed, with its clustered standard error."""
    seen_N = ~np.isnan(values_N)
    observed = values_N[seen_N]
    if len(observed) == 0:
        return Measured(float("nan"), float("nan"), 0)
    _, index_N = np.unique(clusters_N[seen_N], return_inverse=True)
    center = float(observed.mean())
    residuals_G = np.bincount(index_N, observed - center)
    return Measured(center, float(np.sqrt((residuals_G**2).sum())) / len(observed), len(observed))


def baseline(past: Sequence[float]) -> Baseline | None:
    """Median and median absolute deviation; None with fewer than `MIN_WINDOWS` windows."""
    if len(past) < MIN_WINDOWS:
        return None
    median = float(np.median(past))
    return Baseline(median, float(np.median(np.abs(np.asarray(past) - median))), len(past))


def tolerance(now: Measured, normal: Baseline, *, relative: float = 0.0) -> float:
    """How far a figure may stand from the median: noise of both sides, and a share of it."""
    noise = max(MAD_LIMIT * normal.mad, ERROR_LIMIT * now.error)
    return max(noise, relative * abs(normal.median))


def figures_of(traces: Traces) -> dict[str, Measured]:
    """Every figure that drift is looked for in; those not observed have no rows."""
    by_account = {
        "reward": traces.reward,
        "retention": traces.retention,
        "show_rate": traces.shown,
        "edit_rate": traces.edited,
        "kept_bytes": traces.kept_bytes,
        "clarify_rate": traces.clarifies,
        "refusal_rate": traces.refuses,
        "flattery_rate": traces.flatters,
        "sign_off_rate": traces.signs_off,
        "invalid_tool_call_rate": traces.invalid_tool_call,
        "num_tokens": traces.num_tokens,
        "undone_early_rate": traces.undone_early,
    } | {f"missing/{name}": np.isnan(v).astype(float) for name, v in traces.components.items()}
    found = {name: measured(values, traces.account) for name, values in by_account.items()}
    found["shown_per_session"] = _per_session(traces)
    return found


def values_of(figures: Mapping[str, Measured]) -> dict[str, float]:
    """What history remembers of them."""
    return {name: figure.value for name, figure in figures.items() if figure.num_rows}


def rows(traces: Traces, keep: BoolArray) -> Traces:
    """The traces at True."""
    columns = {
        name: getattr(traces, name)[keep]
        for name in Traces.__dataclass_fields__
        if name != "components"
    }
    return Traces(**columns, components={k: v[keep] for k, v in traces.components.items()})


def _per_session(traces: Traces) -> Measured:
    """Suggestions a session."""
    sessions, index_N = np.unique(traces.session, return_inverse=True)
    if len(sessions) == 0 or np.isnan(traces.shown).all():
        return Measured(float("nan"), float("nan"), 0)
    shown_G = np.bincount(index_N, np.nan_to_num(traces.shown)).astype(float)
    first_G = np.unique(index_N, return_index=True)[1]
    return measured(shown_G, traces.account[first_G])
