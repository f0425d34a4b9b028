"""Sums over decisions and episodes, and the four rates that people watch.

Rates come from sums, never from other rates, so any two tallies can be merged.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import msgspec

from tendril.records import Episode

ACCEPTED = frozenset({"accepted", "accepted_partially"})
UNOBSERVED = frozenset({"unknown", "not_exposed"})
"""Outcomes of episodes that say nothing: no verdict was seen, or nobody saw the suggestion."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What a tally says; None where nothing was observed."""

    num_decisions: int
    num_failed: int
    num_episodes: int
    shown_rate: float | None
    """Decisions in which something was shown, over decisions that did not fail."""
    acceptance: float | None
    """Episodes accepted in full or in part, over episodes shown whose verdict was observed."""
    reward_per_decision: float | None
    """Weighted mean over the episodes whose reward is known, silent ones included."""
    accepted_bytes_per_decision: float | None
    """Mean over the episodes whose verdict was observed, silent ones included."""


class EpisodeFacts(NamedTuple):
    """What one episode adds to a tally; kept so that a revision can take it back."""

    policy_version: int | None
    served_at: float
    shown: bool
    outcome: str
    accepted_bytes: int
    reward: float | None
    weight: float
    held_out: bool


def facts_of(episode: Episode) -> EpisodeFacts:
    """The episode's facts, attributed to the version that sampled its first token."""
    spans = [span for segment in episode.segments for span in segment.policy_spans]
    return EpisodeFacts(
        policy_version=spans[0].policy_version if spans else None,
        served_at=episode.served_at,
        shown=episode.shown_bytes > 0,
        outcome=episode.outcome,
        accepted_bytes=episode.accepted_bytes,
        reward=episode.reward,
        weight=episode.weight,
        held_out=episode.held_out,
    )


@dataclass(slots=True)
class Tally:
    """Running sums; `rates` divides them."""

    decisions: int = 0
    failed: int = 0
    shown: int = 0
    episodes: int = 0
    observed: int = 0
    shown_episodes: int = 0
    accepted: int = 0
    accepted_bytes: int = 0
    known_weight: float = 0.0
    reward: float = 0.0

    def count_decision(self, *, failed: bool, shown: bool) -> None:
        """One served decision; `shown` is what the policy chose, False for a failed one."""
        self.decisions += 1
        self.failed += failed
        self.shown += shown

    def count_episode(self, facts: EpisodeFacts, sign: int = 1) -> None:
        """Add an episode, or take back (`sign=-1`) one that a revision supersedes."""
        self.episodes += sign
        observed = facts.outcome not in UNOBSERVED
        self.observed += sign * observed
        self.shown_episodes += sign * (facts.shown and observed)
        self.accepted += sign * (facts.shown and facts.outcome in ACCEPTED)
        self.accepted_bytes += sign * facts.accepted_bytes
        if facts.reward is not None:
            self.known_weight += sign * facts.weight
            self.reward += sign * facts.weight * facts.reward

    def merge(self, other: "Tally") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def rates(self) -> Rates:
        return Rates(
            num_decisions=self.decisions,
            num_failed=self.failed,
            num_episodes=self.episodes,
            shown_rate=_ratio(self.shown, self.decisions - self.failed),
            acceptance=_ratio(self.accepted, self.shown_episodes),
            reward_per_decision=_ratio(self.reward, self.known_weight),
            accepted_bytes_per_decision=_ratio(self.accepted_bytes, self.observed),
        )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
