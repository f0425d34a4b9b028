"""Whether a learned reward may take the linear recipe's place: figures, intervals, yes or no.

Compared on a later window of other users, where the recipe's reward is made a probability by the
same isotonic step, so that neither wins by calibration alone. Intervals resample users, not rows.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from signals.learned.model import LearnedReward, interpolated, isotonic
from signals.learned.rows import Split

Floats = NDArray[np.float64]
MIN_USERS, MIN_OF_A_CLASS = 50, 100
NUM_RESAMPLES = 400


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the later window, and whether the candidate ships."""

    ships: bool
    reasons: tuple[str, ...]
    """Why not; empty if it ships."""
    num_rows: int
    num_users: int
    auc: float | None = None
    default_auc: float | None = None
    auc_gain: tuple[float, float] | None = None
    """95 % interval of candidate minus default."""
    brier: float | None = None
    default_brier: float | None = None
    base_rate_brier: float | None = None
    """Of stating the calibration set's share of good outcomes for every trace."""
    brier_gain: tuple[float, float] | None = None
    """95 % interval of default minus candidate."""


def judge_candidate(candidate: LearnedReward, parts: Split, *, seed: int = 0) -> Verdict:
    """Ships only if AUC and Brier score both beat the default with certainty, and the base rate.

    Too few users or outcomes of a class is a refusal, never a pass. Raises `ValueError` where a
    user of the later window was trained or calibrated on.
    """
    later = parts.later
    users = sorted({row.user_key for row in later})
    seen = {row.user_key for row in (*parts.train, *parts.calibrate)}
    if not seen.isdisjoint(users):
        raise ValueError("expected no user of the later window in training, got some")
    good_N = np.array([row.good for row in later], np.float64)
    fewest = int(min(good_N.sum(), (1 - good_N).sum())) if len(later) else 0
    if len(users) < MIN_USERS or fewest < MIN_OF_A_CLASS:
        reason = (
            f"too small: expected {MIN_USERS} users and {MIN_OF_A_CLASS} outcomes of each class, "
            f"got {len(users)} and {fewest}"
        )
        return Verdict(ships=False, reasons=(reason,), num_rows=len(later), num_users=len(users))
    ours_N = np.array([candidate.probability(row.features) for row in later])
    knots = isotonic(
        [row.default_reward for row in parts.calibrate], [row.good for row in parts.calibrate]
    )
    default_N = np.array([interpolated(knots, row.default_reward) for row in later])
    base = float(np.mean([row.good for row in parts.calibrate]))
    of_user_N = np.searchsorted(users, [row.user_key for row in later])
    auc_gain = _interval(lambda i: auc(ours_N[i], good_N[i]) - auc(default_N[i], good_N[i]),
                         of_user_N, seed)  # fmt: skip
    brier_gain = _interval(lambda i: brier(default_N[i], good_N[i]) - brier(ours_N[i], good_N[i]),
                           of_user_N, seed)  # fmt: skip
    figures = {"auc": auc(ours_N, good_N), "brier": brier(ours_N, good_N)}
    base_brier = brier(np.full(len(later), base), good_N)
    reasons = [
        text
        for text, holds in (
            (f"AUC: not surely above the default's (gain {auc_gain[0]:.4f} .. {auc_gain[1]:.4f})",
             auc_gain[0] > 0),
            (f"Brier score: not surely below the default's "
             f"(gain {brier_gain[0]:.4f} .. {brier_gain[1]:.4f})", brier_gain[0] > 0),
            ("Brier score: no better than the base rate", figures["brier"] < base_brier),
        )
        if not holds
    ]  # fmt: skip
    return Verdict(
        ships=not reasons, reasons=tuple(reasons), num_rows=len(later), num_users=len(users),
        auc=figures["auc"], default_auc=auc(default_N, good_N), auc_gain=auc_gain,
        brier=figures["brier"], default_brier=brier(default_N, good_N),
        base_rate_brier=base_brier, brier_gain=brier_gain,
    )  # fmt: skip


def auc(scores_N: Floats, good_N: Floats) -> float:
    """P(a good one scores above a bad one), ties half; 0.5 without both classes."""
    from scipy.stats import rankdata

    num_good = float(good_N.sum())
    num_bad = len(good_N) - num_good
    if num_good == 0 or num_bad == 0:
        return 0.5
    ranks = float(rankdata(scores_N)[good_N == 1].sum())
    return (ranks - num_good * (num_good + 1) / 2) / (num_good * num_bad)


def brier(probabilities_N: Floats, good_N: Floats) -> float:
    """Mean squared error of the probabilities."""
    return float(np.mean((probabilities_N - good_N) ** 2))


def _interval(
    gain: Callable[[NDArray[np.int64]], float], of_user_N: NDArray[np.int64], seed: int
) -> tuple[float, float]:
    """95 % percentile interval over resampled users."""
    rows: Sequence[NDArray[np.int64]] = [
        np.flatnonzero(of_user_N == user) for user in range(int(of_user_N.max()) + 1)
    ]
    chance = np.random.default_rng(seed)
    gains = [
        gain(np.concatenate([rows[i] for i in chance.integers(len(rows), size=len(rows))]))
        for _ in range(NUM_RESAMPLES)
    ]
    low, high = np.quantile(gains, [0.025, 0.975])
    return float(low), float(high)
