"""Who the simulated users are, and what each does with a suggestion."""

import random
from dataclasses import dataclass

from offline_rl.autocomplete.judgement import match
from tendril.records import FeedbackType


@dataclass(frozen=True, slots=True, kw_only=True)
class Persona:
    """Habits of one kind of user. Times are seconds on the users' clock."""

    name: str
    think_s: float
    """Mean time between a reply and the next pause in typing."""
    reaction_s: float
    """Mean time from seeing a suggestion to deciding on it."""
    tolerance: float
    """Similarity from which a wrong suggestion is accepted and then corrected."""
    partial_share: float
    """How often a half-right suggestion is accepted up to the last right word."""
    reject_share: float
    """How often a wrong one is dismissed on purpose; else it is typed over."""
    second_thoughts: float
    """How often an accepted suggestion is undone."""
    max_tokens: int
    words_between: float


PERSONAS = (
    Persona(name="careful", think_s=0.6, reaction_s=0.7, tolerance=0.95, partial_share=0.7,
            reject_share=0.8, second_thoughts=0.02, max_tokens=2, words_between=2.0),
    Persona(name="quick", think_s=0.3, reaction_s=0.3, tolerance=0.85, partial_share=0.4,
            reject_share=0.5, second_thoughts=0.05, max_tokens=2, words_between=4.0),
    Persona(name="generous", think_s=0.5, reaction_s=0.5, tolerance=0.7, partial_share=0.8,
            reject_share=0.6, second_thoughts=0.03, max_tokens=3, words_between=3.0),
    Persona(name="terse", think_s=0.4, reaction_s=0.4, tolerance=1.0, partial_share=0.3,
            reject_share=0.9, second_thoughts=0.02, max_tokens=1, words_between=3.0),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """One thing a user does, `delay_s` after seeing the suggestion."""

    type: FeedbackType
    delay_s: float
    value: float | None = None
    span: tuple[int, int] | None = None
    added_chars: int | None = None
    removed_chars: int | None = None
    horizon_s: float | None = None
    visible_ms: float | None = None


def react(
    persona: Persona, suggestion: str, following: str, rng: random.Random, retention_s: float
) -> list[Reaction]:
    """Everything `persona` will do about a shown suggestion, in order.

    Retention is measured `retention_s` after acceptance, on the text as corrected by then.
    """
    found = match(suggestion, following)
    decided_s = 0.3 + rng.expovariate(1 / persona.reaction_s)
    shown = Reaction(type="suggestion.shown", delay_s=0.0, visible_ms=decided_s * 1000)
    if found.is_full or found.similarity >= persona.tolerance:
        kept = 1.0 if found.is_full else found.similarity
        accepted = Reaction(type="suggestion.accepted", delay_s=decided_s)
        num_wrong = 0 if found.is_full else max(1, round((1.0 - kept) * len(suggestion)))
        later = _afterwards(persona, decided_s, kept, num_wrong, rng, retention_s)
        return [shown, accepted, *later]
    if found.matching_bytes and rng.random() < persona.partial_share:
        partly = Reaction(
            type="suggestion.accepted_partially",
            delay_s=decided_s,
            value=found.matching_bytes / found.shown_bytes,
            span=(0, found.matching_bytes),
        )
        return [shown, partly, *_afterwards(persona, decided_s, 1.0, 0, rng, retention_s)]
    dismissed = rng.random() < persona.reject_share
    decision: FeedbackType = "suggestion.rejected" if dismissed else "suggestion.ignored"
    return [shown, Reaction(type=decision, delay_s=decided_s)]


def _afterwards(
    persona: Persona,
    accepted_s: float,
    kept: float,
    num_wrong: int,
    rng: random.Random,
    retention_s: float,
) -> list[Reaction]:
    """Undo, or put right the `num_wrong` characters; then what is left is measured."""
    if rng.random() < persona.second_thoughts:
        undone_s = accepted_s + rng.uniform(0.3, 0.6 * retention_s)
        return [Reaction(type="edit.undone", delay_s=undone_s)]
    reactions: list[Reaction] = []
    if num_wrong:
        edited_s = accepted_s + rng.uniform(0.3, 0.6 * retention_s)
        reactions.append(
            Reaction(
                type="edit.applied",
                delay_s=edited_s,
                added_chars=num_wrong,
                removed_chars=num_wrong,
            )
        )
    reactions.append(
        Reaction(
            type="retention.measured",
            delay_s=accepted_s + retention_s,
            value=kept,
            horizon_s=retention_s,
        )
    )
    return reactions
