"""Scores of programs: tests, builds, linters, judges. A failed one is missing, never 0."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from signals.components.parts import Absence, Absent, weighted_mean
from signals.outcome import Grade
from signals.recipe import Grader
from signals.recipe.tables import RefusalRecipe


class Grades(NamedTuple):
    """The mean score in [-1, 1] of those that gave one, and who gave none."""

    score: float | None
    absent: Absent = ()
    lacks_mandatory: bool = False
    """Then the trace must not be trained on."""


def grades_of(graders: Iterable[Grader], grades: Mapping[str, Grade]) -> Grades:
    """Only graders that the recipe names count.

    One that failed is missing; a mandatory one that has said nothing is pending, whenever.
    """
    scored: list[tuple[float, float]] = []
    absent: list[tuple[str, Absence]] = []
    lacks_mandatory = False
    for grader in graders:
        grade = grades.get(grader.name)
        score = None if grade is None else _scaled(grader, grade.score)
        if score is not None:
            scored.append((grader.weight, score))
            continue
        lacks_mandatory |= grader.mandatory
        if grade is not None or grader.mandatory:
            absent.append((f"grader_{grader.name}", "pending" if grade is None else "missing"))
    return Grades(weighted_mean(scored), tuple(absent), lacks_mandatory)


def says_refusal_was_right(recipe: RefusalRecipe, grades: Mapping[str, Grade]) -> bool:
    """Whether the grader of refusals found a refusal, and found it correct."""
    grade = grades.get(recipe.grader) if recipe.grader else None
    return grade is not None and grade.score is not None and grade.score >= recipe.min_score


def _scaled(grader: Grader, score: float | None) -> float | None:
    """From the grader's scale to [-1, 1]; outside it, or not a number, is a failure."""
    if score is None or not math.isfinite(score) or not grader.low <= score <= grader.high:
        return None
    return 2 * (score - grader.low) / (grader.high - grader.low) - 1
