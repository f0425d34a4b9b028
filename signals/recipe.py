"""A reward recipe: figures from a TOML file, typed, refused when unknown, named by a digest."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec

from tendril.ids import digest_of

JUDGE_VERSION = 1
"""Raise it whenever the same figures and events would be judged differently by new code."""
MAX_EXPLICIT_SHARE = 0.1

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class Horizon(_Table, frozen=True, kw_only=True):
    """One moment at which retention is measured, and its weight among them."""

    horizon_s: Positive
    weight: Positive


class CompletionRecipe(_Table, frozen=True, kw_only=True):
    """Figures of the `completion` and `suggestion` routes."""

    threshold: Share
    undo_penalty: Share
    undo_within_s: Positive
    min_visible_ms: Annotated[float, msgspec.Meta(ge=0)]
    ignored_weight: Share


class ChatRecipe(_Table, frozen=True, kw_only=True):
    """Component weights of the `chat` route, and the limits on votes."""

    retention: Share
    followed_up: Share
    interrupted: Share
    vote: Share
    max_vote_share: Annotated[float, msgspec.Meta(ge=0, le=MAX_EXPLICIT_SHARE)]
    vote_alone: Share

    def __post_init__(self) -> None:
        limit = MAX_EXPLICIT_SHARE * (
            self.retention + self.followed_up + self.interrupted + self.vote
        )
        if self.vote > limit:
            raise ValueError(
                f"chat.vote: expected at most a tenth of all chat weights ({limit:.4g}), "
                f"got {self.vote}"
            )


class CreditRecipe(_Table, frozen=True, kw_only=True):
    """How far a kept token's credit may stand from a lost one's."""

    token_spread: Share


class Recipe(_Table, frozen=True, kw_only=True):
    """The whole file. Meanings and reasons: `default_recipe.toml`."""

    name: str
    retention: Annotated[tuple[Horizon, ...], msgspec.Meta(min_length=1)]
    completion: CompletionRecipe
    chat: ChatRecipe
    credit: CreditRecipe

    def __post_init__(self) -> None:
        horizons = [horizon.horizon_s for horizon in self.retention]
        if len(set(horizons)) != len(horizons):
            raise ValueError(f"retention: expected distinct horizon_s, got {horizons}")

    @property
    def digest(self) -> str:
        """Names the figures, their order and layout in the file aside, and the code's meaning."""
        horizons = tuple(sorted(self.retention, key=lambda horizon: horizon.horizon_s))
        canonical = msgspec.structs.replace(self, retention=horizons)
        content = msgspec.json.encode(canonical, order="sorted").decode()
        return digest_of("recipe", str(JUDGE_VERSION), content)


def load_recipe(path: Path | None) -> Recipe:
    """The recipe in `path`, or the packaged default for None.

    Raises `OSError` for an unreadable file and `ValueError` naming file and key for anything that
    is not a recipe, unknown keys included.
    """
    source = path or resources.files("signals") / "default_recipe.toml"
    try:
        content = tomllib.loads(source.read_text(encoding="utf-8"))
        return msgspec.convert(content, Recipe)
    except (ValueError, msgspec.ValidationError) as error:
        raise ValueError(f"recipe {source}: {error}") from error
