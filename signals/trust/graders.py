"""Detector 11: graders that fail, say always the same, moved, or miss what is known.

A finding here is about a whole window; `grader_health` follows each score as it comes and says
exactly which rows an outage touched.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from signals.trust.columns import FloatArray
from signals.trust.finding import Finding
from signals.trust.window import Canary, Window

MAX_ERROR_SHARE = 0.02
MIN_ERRORS = 3
CONSTANT_STD = 1e-3
CONSTANT_SCORES = 200
MAX_SHIFT_P = 1e-4
MIN_SHIFT_SCORES = 50
CANARY_TOLERANCE = 0.1


def graders(window: Window) -> list[Finding]:
    """11: by grader and version, the first of errors, constancy, shift and canaries."""
    events = window.events
    found = []
    for name in np.unique(events.grader[events.grader != ""]):
        mine_F = events.grader == name
        order = np.argsort(events.at[mine_F], kind="stable")
        scores = events.value[mine_F][order]
        failed = events.failed[mine_F][order] | ~np.isfinite(scores)
        reference = window.grader_reference.get(str(name), np.empty(0))
        for figure, limit, why in _signs(scores[~failed], failed, reference):
            found.append(_finding(window, str(name), figure, limit, why))
            break
    return found + _wrong_canaries(window)


def shift_p(reference_N: FloatArray, scores_M: FloatArray) -> float:
    """Two-sample Kolmogorov-Smirnov p-value; ties, as on a coarse scale, make it too large."""
    from scipy.stats import ks_2samp

    return float(ks_2samp(reference_N, scores_M, method="asymp").pvalue)


def is_wrong(canary: Canary) -> bool:
    """Whether a grader missed an item of known score; a failure is an error, not a miss."""
    return canary.got is not None and not abs(canary.got - canary.expected) <= CANARY_TOLERANCE


def _signs(
    scores: FloatArray, failed: np.ndarray, reference: FloatArray
) -> Iterator[tuple[float, float, str]]:
    """(figure, limit, why) for each sign that something is wrong."""
    errors = int(failed.sum())
    if errors >= MIN_ERRORS and errors > MAX_ERROR_SHARE * len(failed):
        yield errors / len(failed), MAX_ERROR_SHARE, f"{errors} of {len(failed)} scores failed"
    if len(scores) >= CONSTANT_SCORES:
        spread = float(scores[-CONSTANT_SCORES:].std())
        if spread < CONSTANT_STD:
            yield spread, CONSTANT_STD, f"the last {CONSTANT_SCORES} scores are the same"
    if min(len(scores), len(reference)) >= MIN_SHIFT_SCORES:
        p = shift_p(reference, scores)
        if p < MAX_SHIFT_P:
            yield p, MAX_SHIFT_P, "scores moved on the same policy and prompts"


def _wrong_canaries(window: Window) -> list[Finding]:
    by_grader: dict[str, list[Canary]] = {}
    for canary in window.canaries:
        if is_wrong(canary):
            by_grader.setdefault(canary.grader, []).append(canary)
    return [
        _finding(window, name, _miss(wrong), CANARY_TOLERANCE,
                 f"{len(wrong)} items of known score are scored wrongly")
        for name, wrong in sorted(by_grader.items())
    ]  # fmt: skip


def _miss(wrong: Sequence[Canary]) -> float:
    return max(abs((canary.got or 0.0) - canary.expected) for canary in wrong)


def _finding(window: Window, name: str, figure: float, limit: float, why: str) -> Finding:
    return Finding(
        detector="graders", scope="grader", scope_id=name, figure=figure, limit=limit,
        since=window.since, until=window.until, why=why,
    )  # fmt: skip
