"""Costs of waiting and of length: limits to watch first, without weight in the default recipe."""

from signals.recipe import Recipe
from signals.recipe.tables import BudgetRecipe
from tendril.records import Trace


def costs(recipe: Recipe, trace: Trace) -> dict[str, float]:
    """By name, what is added to the reward, in [-weight, 0]; only those that cost something."""
    quantities = (
        ("latency", recipe.latency_s, trace.latency.total_s),
        ("length", recipe.length_tokens, float(len(trace.completion_token_ids))),
    )
    found = {
        name: -table.weight * overrun(table, used)
        for name, table, used in quantities
        if table.weight
    }
    return {name: cost for name, cost in found.items() if cost < 0}


def overrun(table: BudgetRecipe, used: float) -> float:
    """min(1, max(0, used - budget) / budget): 0 inside the budget, 1 from twice that on."""
    return min(1.0, max(0.0, used - table.budget) / table.budget)
