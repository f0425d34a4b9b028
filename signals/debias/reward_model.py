"""A plain reward model for the doubly robust estimators: each action's mean, out of fold, shrunken.

Shapes: N = logged decisions, A = actions. A row's own reward never enters its prediction, nor does
any other row of the same user.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from signals.debias.fits import Floats, Ints, check_same_length
from signals.debias.off_policy import Modelled

NUM_FOLDS = 5
PRIOR_ROWS = 20.0


def folds_by_user(users_N: NDArray[Any], *, num_folds: int = NUM_FOLDS) -> Ints:
    """Fold of each row [N]; a user's rows share one, and folds get equally many users."""
    _, user_of_N = np.unique(users_N, return_inverse=True)
    num_users = int(user_of_N.max(initial=-1)) + 1
    fold_of_user = np.random.default_rng(0).permutation(num_users) % num_folds
    return np.asarray(fold_of_user[user_of_N], dtype=np.int64)


def action_means(rewards_N: Floats, actions_N: Ints, target_A: Floats, folds_N: Ints) -> Modelled:
    """Mean reward by action over the other folds, drawn to the overall mean by `PRIOR_ROWS` rows.

    `target_A`: the target policy's probability of each action, the same for every row.
    """
    check_same_length(rewards=rewards_N, actions=actions_N, folds=folds_N)
    logged_action_N, target_policy_N = np.zeros_like(rewards_N), np.zeros_like(rewards_N)
    for fold in np.unique(folds_N):
        others, here = folds_N != fold, folds_N == fold
        overall = float(rewards_N[others].mean()) if others.any() else 0.0
        actions = actions_N[others]
        count_A = np.bincount(actions, minlength=target_A.size)
        sum_A = np.bincount(actions, weights=rewards_N[others], minlength=target_A.size)
        mean_A = (sum_A + PRIOR_ROWS * overall) / (count_A + PRIOR_ROWS)
        logged_action_N[here] = mean_A[actions_N[here]]
        target_policy_N[here] = float(target_A @ mean_A)
    return Modelled(logged_action_N, target_policy_N)
