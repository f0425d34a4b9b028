"""Other answers to delayed outcomes, for comparison and for those who prefer them.

DFM: Chapelle 2014. FNW: Ktena et al. 2019. ES-DFM: Yang et al. 2021 (arXiv:2012.03245). Kaplan and
Meier 1958. Their formulas are restated in anchors 3.2. Shapes: N = traces; `delays_s_N` is NaN
where no outcome has come by `ages_s_N`.
"""

from typing import NamedTuple

import numpy as np

from signals.debias.fits import Floats, Refused, check_same_length

MAX_ROUNDS = 2_000
TOLERANCE = 1e-9


class ExponentialDelay(NamedTuple):
    """DFM without features: P(outcome ever), and the rate of its exponential delay."""

    probability: float
    rate_per_s: float


def fit_exponential(ages_s_N: Floats, delays_s_N: Floats) -> ExponentialDelay | Refused:
    """Maximum likelihood by EM: log p + log l - l d if it came, log(1 - p + p exp(-l e)) if not.

    Chapelle 2014, equations 17 to 19, with one intercept for features. Wrong where delays have a
    heavier tail than exponential, as real ones do: it then reads the tail as "never".
    """
    check_same_length(ages=ages_s_N, delays=delays_s_N)
    came_N = ~np.isnan(delays_s_N)
    num_came, delay_sum_s = int(came_N.sum()), float(delays_s_N[came_N].sum())
    if num_came == 0 or delay_sum_s <= 0:
        return Refused("exponential delay", f"{num_came} outcomes, {delay_sum_s:g} s in all")
    waiting_s = ages_s_N[~came_N]
    probability, rate = num_came / ages_s_N.size, num_came / delay_sum_s
    for _ in range(MAX_ROUNDS):
        still = probability * np.exp(-rate * waiting_s)
        coming = still / (1 - probability + still)
        new_probability = (num_came + float(coming.sum())) / ages_s_N.size
        new_rate = num_came / (delay_sum_s + float(coming @ waiting_s))
        moved = abs(new_probability - probability) + abs(new_rate / rate - 1)
        probability, rate = new_probability, new_rate
        if moved < TOLERANCE:
            break
    return ExponentialDelay(probability, rate)


def exponential_log_likelihood(
    ages_s_N: Floats, delays_s_N: Floats, model: ExponentialDelay
) -> float:
    """What `fit_exponential` maximises."""
    came_N = ~np.isnan(delays_s_N)
    p, rate = model
    came = np.log(p) + np.log(rate) - rate * delays_s_N[came_N]
    waiting = np.log(1 - p + p * np.exp(-rate * ages_s_N[~came_N]))
    return float(came.sum() + waiting.sum())


def kaplan_meier_share(ages_s_N: Floats, delays_s_N: Floats, at_s: float) -> float:
    """P(outcome by `at_s`), traces without one taken as censored at their age.

    It cannot look past the oldest trace: beyond it the last value stands.
    """
    from scipy import stats

    check_same_length(ages=ages_s_N, delays=delays_s_N)
    came_N = ~np.isnan(delays_s_N)
    sample = stats.CensoredData(uncensored=delays_s_N[came_N], right=ages_s_N[~came_N])
    return 1 - float(stats.ecdf(sample).sf.evaluate(at_s))


def fnw_weights(probabilities_N: Floats, positive_N: Floats) -> Floats:
    """Fake negative weighted: every trace enters as a negative at once, and again when it turns.

    p is the true rate, so the stream shows b = p / (1 + p): weights 1 + p on positives and
    (1 - p)(1 + p) on negatives give back p and 1 - p. `positive_N` is 0 or 1.
    """
    return np.where(
        positive_N > 0, 1 + probabilities_N, (1 - probabilities_N) * (1 + probabilities_N)
    )


def fnw_probability(observed_rate: float) -> float:
    """p = b / (1 - b): the true rate behind a stream's share of positives."""
    return observed_rate / (1 - observed_rate)


def esdfm_weights(delayed_N: Floats, true_negative_N: Floats, positive_N: Floats) -> Floats:
    """Elapsed-time sampling: label after a wait, and again as positive if it comes later still.

    `delayed_N`: P(positive, but only after the wait). `true_negative_N`: P(never | none by the
    wait). Weights 1 + delayed on positives, (1 + delayed) * true_negative on negatives.
    """
    return np.where(positive_N > 0, 1 + delayed_N, (1 + delayed_N) * true_negative_N)
