"""A reward recipe: figures from a TOML file, typed, refused when unknown, named by a digest."""

from signals.recipe.file import load_recipe
from signals.recipe.tables import (
    ChatRecipe,
    CompletionRecipe,
    FollowUpRecipe,
    Grader,
    Horizon,
    Recipe,
)

__all__ = [
    "ChatRecipe",
    "CompletionRecipe",
    "FollowUpRecipe",
    "Grader",
    "Horizon",
    "Recipe",
    "load_recipe",
]
