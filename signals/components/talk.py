"""What the user's next message says about the reply before it."""

from signals.recipe import FollowUpRecipe
from tendril.records import Feedback

CLASSES = ("satisfied", "new_goal", "clarify", "rephrase", "wrong_or_revert")
NEUTRAL = "neutral"


def follow_up_value(worth: FollowUpRecipe, event: Feedback | None) -> float | None:
    """In [-1, 1]: the worth of the event's class (its `reason`), else the value it came with.

    None for a neutral message and for one that nothing judged.
    """
    if event is None or event.reason == NEUTRAL:
        return None
    if event.reason in CLASSES:
        return float(getattr(worth, event.reason))
    return event.value
