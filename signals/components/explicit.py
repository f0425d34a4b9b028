"""Votes and ratings: they correct what behaviour says and never decide against it.

Their weight is capped to a share of what is present, and they cannot turn its sign: a model that
learns to please voters would otherwise learn flattery (anchors 1.3 and 3, hard rule 1).
"""

import math

from signals.outcome import Outcome, Rating
from signals.recipe import ChatRecipe


def explicit_components(outcome: Outcome) -> dict[str, float]:
    """What users said, each in [-1, 1]; absent if they did not."""
    components = {} if outcome.vote is None else {"vote": outcome.vote}
    return components if outcome.rating is None else components | {"rating": scaled(outcome.rating)}


def scaled(rating: Rating) -> float:
    """From its own scale to [-1, 1]: the middle of any scale is 0."""
    return 2 * (rating.value - rating.low) / (rating.high - rating.low) - 1


def corrected(
    weights: ChatRecipe, behaviour: dict[str, float], explicit: dict[str, float]
) -> float | None:
    """The weighted mean of all components, with `explicit` under its cap; None without any.

    Neither the sign of what users did nor that of retention can be turned by what they say.
    """
    total = math.fsum(getattr(weights, name) for name in behaviour)
    said = math.fsum(getattr(weights, name) for name in explicit)
    opinion = math.fsum(getattr(weights, name) * value for name, value in explicit.items())
    if total == 0:
        return opinion / said * weights.explicit_alone if said else None
    weighted = math.fsum(getattr(weights, name) * value for name, value in behaviour.items())
    if said == 0:
        return weighted / total
    cap = weights.max_explicit_share / (1 - weights.max_explicit_share) * total
    used = min(said, cap)
    mean = (weighted + used * opinion / said) / (total + used)
    return 0.0 if weighted * mean < 0 else mean
