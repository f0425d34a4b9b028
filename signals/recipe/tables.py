"""The tables of a recipe file, with their limits. Meanings and reasons: `default_recipe.toml`.

What a file may leave out has the default recipe's figure, or 0 where leaving it out means without.
"""

from typing import Annotated

import msgspec

from signals.learned.model import LearnedReward
from tendril.ids import digest_of

JUDGE_VERSION = 2
"""Raise it whenever the same figures and events would be judged differently by new code."""
MAX_EXPLICIT_SHARE = 0.1
EXPLICIT = ("vote", "rating")
"""Channels in which users say what they think, beside what they do."""

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Signed = Annotated[float, msgspec.Meta(ge=-1, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class Horizon(Table, frozen=True, kw_only=True):
    """One moment at which retention is measured, and its weight among them."""

    horizon_s: Positive
    weight: Positive

    @property
    def name(self) -> str:
        """As in a judgement's `pending`, `missing` and `censored`."""
        return f"retention_{self.horizon_s:g}s"


class CompletionRecipe(Table, frozen=True, kw_only=True):
    """Figures of the `completion` and `suggestion` routes."""

    threshold: Share
    undo_penalty: Share
    undo_within_s: Positive
    min_visible_ms: NotNegative
    replaced_within_ms: NotNegative = 500.0
    ignored_after_s: Positive = 10.0
    ignored_weight: Share


class ChatRecipe(Table, frozen=True, kw_only=True):
    """Component weights of the `chat` route, and the limits on what users say."""

    retention: Share
    followed_up: Share
    grader: Share = 0.0
    interrupted: Share
    tool_calls: Share = 0.0
    vote: Share
    rating: Share = 0.0
    max_explicit_share: Annotated[float, msgspec.Meta(ge=0, le=MAX_EXPLICIT_SHARE)]
    explicit_alone: Share

    def __post_init__(self) -> None:
        limit = MAX_EXPLICIT_SHARE * self.total
        for name in EXPLICIT:
            if getattr(self, name) > limit:
                raise ValueError(
                    f"chat.{name}: expected at most a tenth of all chat weights ({limit:.4g}), "
                    f"got {getattr(self, name)}"
                )

    @property
    def total(self) -> float:
        """Of the components' weights."""
        return (
            self.retention + self.followed_up + self.grader + self.interrupted
            + self.tool_calls + self.vote + self.rating
        )  # fmt: skip


class FollowUpRecipe(Table, frozen=True, kw_only=True):
    """What each class of the user's next message is worth; a neutral one says nothing."""

    satisfied: Signed = 1.0
    new_goal: Signed = 1.0
    clarify: Signed = -0.3
    rephrase: Signed = -0.6
    wrong_or_revert: Signed = -1.0
    classifier: str = ""


class Grader(Table, frozen=True, kw_only=True):
    """A program that scores replies from `low` to `high`."""

    name: str
    weight: Positive = 1.0
    low: float = 0.0
    high: float = 1.0
    mandatory: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(
                f"grader {self.name}: expected low < high, got {self.low}, {self.high}"
            )


class RefusalRecipe(Table, frozen=True, kw_only=True):
    """Which grader says that a refusal was correct, and from which score on; "": none does."""

    grader: str = ""
    min_score: float = 0.5


class BudgetRecipe(Table, frozen=True, kw_only=True):
    """A quantity that costs nothing up to `budget`, and `weight` from twice that on."""

    budget: Positive
    weight: Share = 0.0


class CreditRecipe(Table, frozen=True, kw_only=True):
    """How far the credit of a kept token, and of an invalid call's, may stand from others'."""

    token_spread: Share
    invalid_call_spread: Share = 1.0


class Recipe(Table, frozen=True, kw_only=True):
    """The whole file."""

    name: str
    retention: Annotated[tuple[Horizon, ...], msgspec.Meta(min_length=1)]
    """In order of time, whatever the file's."""
    completion: CompletionRecipe
    chat: ChatRecipe
    followed_up: FollowUpRecipe = FollowUpRecipe()
    graders: tuple[Grader, ...] = ()
    refusal: RefusalRecipe = RefusalRecipe()
    latency_s: BudgetRecipe = BudgetRecipe(budget=30.0)
    length_tokens: BudgetRecipe = BudgetRecipe(budget=4_096.0)
    credit: CreditRecipe
    learned: LearnedReward | None = None
    """In the file the name of its JSON; of early looks only, whose end it predicts."""

    def __post_init__(self) -> None:
        for table, key in (("retention", "horizon_s"), ("graders", "name")):
            values = [getattr(entry, key) for entry in getattr(self, table)]
            if len(set(values)) != len(values):
                raise ValueError(f"{table}: expected distinct {key}, got {values}")
        horizons = tuple(sorted(self.retention, key=lambda horizon: horizon.horizon_s))
        msgspec.structs.force_setattr(self, "retention", horizons)

    @property
    def digest(self) -> str:
        """Names the figures, their order and layout in the file aside, and the code's meaning."""
        graders = tuple(sorted(self.graders, key=lambda grader: grader.name))
        canonical = msgspec.structs.replace(self, graders=graders)
        content = msgspec.json.encode(canonical, order="sorted").decode()
        return digest_of("recipe", str(JUDGE_VERSION), content)
