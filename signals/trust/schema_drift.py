"""Detector 16: numbers on another scale, codes that nobody declared. Alarms only.

Population stability index over the reference's deciles: sum (p - q) ln(p / q), with half a row
added to each bin. Two samples of one distribution have an index of about (bins - 1) (1/n + 1/m).
"""

import numpy as np

from signals.trust.columns import FloatArray
from signals.trust.finding import Finding
from signals.trust.window import Window

MAX_PSI = 0.2
NUM_BINS = 10
MIN_VALUES = 300


def schema_drift(window: Window) -> list[Finding]:
    """16: samples that moved against their reference, NaN included, and unknown codes."""
    found = []
    for name, reference in window.reference.items():
        sample = window.sample.get(name, np.empty(0))
        if min(len(reference), len(sample)) < MIN_VALUES:
            continue
        index = stability_index(reference, sample)
        if index > MAX_PSI:
            found.append(_alarm(window, name, index, MAX_PSI, f"{name} is distributed otherwise"))
    for name, seen in window.seen_values.items():
        unknown = sorted(seen - window.known_values.get(name, seen))
        if unknown:
            why = f"{name}: {len(unknown)} codes that the schema does not have"
            found.append(_alarm(window, name, float(len(unknown)), 0.0, why))
    return found


def stability_index(reference_N: FloatArray, sample_M: FloatArray) -> float:
    """PSI of a sample against a reference; what is not a number has a bin of its own."""
    finite = reference_N[np.isfinite(reference_N)]
    inner = np.unique(np.quantile(finite, np.linspace(0, 1, NUM_BINS + 1)[1:-1]))
    edges = np.concatenate(([-np.inf], inner, np.nextafter(inner[-1:], np.inf), [np.inf]))
    p_B, q_B = _shares(reference_N, edges), _shares(sample_M, edges)
    return float(((q_B - p_B) * np.log(q_B / p_B)).sum())


def _shares(values_N: FloatArray, edges: FloatArray) -> FloatArray:
    number = ~np.isnan(values_N)
    bins = np.searchsorted(edges[1:-1], values_N[number], side="right")
    counts = np.bincount(bins, minlength=len(edges) - 1)
    padded = np.append(counts, np.count_nonzero(~number)) + 0.5
    return np.asarray(padded / padded.sum(), float)


def _alarm(window: Window, name: str, figure: float, limit: float, why: str) -> Finding:
    return Finding(
        detector="schema_drift", scope="service", scope_id=name, figure=figure, limit=limit,
        since=window.since, until=window.until, why=why, holds=False,
    )  # fmt: skip
