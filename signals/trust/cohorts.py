"""Detector 10: dispersion of reward across users. A policy that games a few leaves the mean alone.

The figure is the F statistic of a one-way analysis of variance: variance between groups over
variance within. It is 1 where users differ by chance alone; people differ a little, so it is
compared with the past week.
"""

import numpy as np

from signals.trust.columns import FloatArray, NameArray
from signals.trust.drift import policies
from signals.trust.figures import ERROR_LIMIT, MAD_LIMIT, baseline
from signals.trust.finding import Finding
from signals.trust.window import Window

MIN_ROWS_A_GROUP = 4
MIN_GROUPS = 20
FIGURE = "dispersion"


def dispersion(rewards_N: FloatArray, groups_N: NameArray) -> tuple[float, float]:
    """F and its standard error by chance, sqrt(2 / (groups - 1)); NaN with too few groups."""
    seen_N = ~np.isnan(rewards_N)
    values, (names, index_N) = rewards_N[seen_N], np.unique(groups_N[seen_N], return_inverse=True)
    counts_G = np.bincount(index_N, minlength=len(names))
    keep_N = counts_G[index_N] >= MIN_ROWS_A_GROUP
    num_groups = int(np.count_nonzero(counts_G >= MIN_ROWS_A_GROUP))
    if num_groups < MIN_GROUPS:
        return float("nan"), float("nan")
    values, index_N = values[keep_N], np.unique(index_N[keep_N], return_inverse=True)[1]
    counts_G = np.bincount(index_N)
    means_G = np.bincount(index_N, values) / counts_G
    between = (counts_G * (means_G - values.mean()) ** 2).sum() / (num_groups - 1)
    within = ((values - means_G[index_N]) ** 2).sum() / (len(values) - num_groups)
    return float(between / max(within, 1e-12)), float(np.sqrt(2 / (num_groups - 1)))


def cohorts(window: Window) -> list[Finding]:
    """10: some users are rewarded far more, or less, than chance and habit explain."""
    normal = baseline(window.history.get(FIGURE, ()))
    if normal is None:
        return []
    found = []
    for version, part in policies(window.traces):
        figure, error = dispersion(part.reward, part.account)
        limit = normal.median + max(MAD_LIMIT * normal.mad, ERROR_LIMIT * error * normal.median)
        if figure > limit:
            found.append(Finding(
                detector="cohorts", scope="policy", scope_id=str(version), figure=figure,
                limit=limit, since=window.since, until=window.until,
                why=f"reward differs between users {figure:.2f} times as much as within; "
                f"of the week {normal.median:.2f}",
            ))  # fmt: skip
    return found
