"""Undoes the show-regardless experiment: each decision weighted by policy / behavior.

In a share eps of the decisions, drawn before them, silence is forbidden as first token. With
pi the policy at the sampling temperature and s the silence token, the first token then follows
    b(s) = (1 - eps) pi(s),     b(a) = (1 - eps) pi(a) + eps pi(a) / (1 - pi(s))  for a != s,
and later tokens follow pi. So pi / b of the whole decision is that of its first token. It uses
the mixture, not the branch that was drawn: the balance heuristic (Veach and Guibas, 1995), which
has the smaller variance and never exceeds 1 / (1 - eps).
"""

import math


def exploration_weight(share: float, silence_logprob: float, is_silent: bool) -> float:
    """pi / b of one decision, in [0, 1 / (1 - share)]. Multiplies every token of the decision.

    `share` is eps in [0, 1) of every such decision, forced or not; `silence_logprob` is
    log pi(s) of the first token, before exploration. Raises ValueError for other numbers.
    """
    if not 0 <= share < 1:
        raise ValueError(f"exploration share: expected 0 <= share < 1, got {share}")
    if math.isnan(silence_logprob) or silence_logprob > 1e-3:
        raise ValueError(f"silence_logprob: expected a log-probability, got {silence_logprob}")
    if share == 0:
        return 1.0
    if is_silent:
        return 1 / (1 - share)
    show = -math.expm1(min(silence_logprob, 0.0))  # 1 - pi(s), exact where pi(s) is near 1
    return show / ((1 - share) * show + share)
