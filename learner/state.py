"""All that the learner needs to go on: weights, optimizer, baseline, counts and log offsets.

Saved as one file that appears whole. After kill -9 the learner reads on from the offsets inside.
With the same anchor and no version published in between, the weights are those of a run that was
never interrupted.
"""

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from kernels.scoring import load_policy
from learner.baseline import Baseline
from tendril.files import write_whole
from tendril.log import Offsets, TopicPartition
from tendril.settings import LearnerSettings

REMEMBERED_IDS = 20_000
"""Episodes repeat only just after a crash, so a short memory suffices."""


@dataclass(slots=True, kw_only=True)
class LearnerState:
    """See the module."""

    model: PreTrainedModel
    """float32 masters."""
    optimizer: torch.optim.Optimizer
    baseline: Baseline
    policy_version: int
    """The newest version published; what it trains becomes the next one."""
    parent: int
    """The version that these weights were last equal to when they went out or came back."""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Episodes by what became of them: trained, or the reason they were dropped."""
    seen_ids: dict[str, None] = field(default_factory=dict)
    """Ids of the newest episodes trained on, oldest first."""
    num_steps: int = 0
    steps_since_publish: int = 0
    num_read: int = 0
    """Episodes behind `offsets`, unreadable ones and repeats included."""
    num_rollbacks: int = 0
    """Rollbacks on the log that this state has answered."""
    recipe_digest: str = ""
    """Of the reward recipe of the newest episode trained on."""
    newest_feedback_at: float | None = None
    unpublished: bool = False
    """A version was taken and saved, and its manifest may not be on the log yet."""
    metrics: dict[str, float] = field(default_factory=dict)

    def add(self, outcomes: Mapping[str, int]) -> None:
        """Count episodes by what became of them."""
        for outcome, n in outcomes.items():
            self.counts[outcome] = self.counts.get(outcome, 0) + n

    def remember(self, episode_ids: Iterable[str]) -> None:
        """Their repeats will be dropped, for a while."""
        self.seen_ids.update(dict.fromkeys(episode_ids))
        while len(self.seen_ids) > REMEMBERED_IDS:
            del self.seen_ids[next(iter(self.seen_ids))]


def new_state(checkpoint: Path, settings: LearnerSettings, first_version: int) -> LearnerState:
    """The state before the first step."""
    model = load_policy(checkpoint)
    return LearnerState(
        model=model,
        optimizer=make_optimizer(model, settings),
        baseline=Baseline(half_life=settings.baseline_half_life),
        policy_version=first_version,
        parent=first_version,
    )


def make_optimizer(model: PreTrainedModel, settings: LearnerSettings) -> torch.optim.Optimizer:
    """AdamW without weight decay: the KL term is what holds the weights back."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=(0.9, 0.95),
        eps=settings.adam_epsilon,
        weight_decay=0.0,
    )


def save(state: LearnerState, path: Path) -> None:
    """Write the checkpoint, whole."""
    buffer = io.BytesIO()
    torch.save(_to_dict(state), buffer)
    write_whole(path, buffer.getvalue())


def load(path: Path, checkpoint: Path, settings: LearnerSettings) -> LearnerState | None:
    """The saved state, or None where there is none; `checkpoint` gives the architecture."""
    if not path.exists():
        return None
    saved: dict[str, Any] = torch.load(path, weights_only=True)
    state = new_state(checkpoint, settings, saved["policy_version"])
    state.model.load_state_dict(saved["model"])
    state.optimizer.load_state_dict(saved["optimizer"])
    for group in state.optimizer.param_groups:
        group["lr"] = settings.learning_rate  # the settings of today, not the checkpoint's
        group["eps"] = settings.adam_epsilon
    state.baseline = Baseline.from_state(saved["baseline"], half_life=settings.baseline_half_life)
    state.offsets = {TopicPartition(t, p): offset for t, p, offset in saved["offsets"]}
    state.remember(saved["seen_ids"])
    for name in PLAIN_FIELDS:
        setattr(state, name, saved[name])
    return state


PLAIN_FIELDS = (
    "parent", "counts", "num_steps", "steps_since_publish", "num_read", "num_rollbacks",
    "recipe_digest", "newest_feedback_at", "unpublished", "metrics",
)  # fmt: skip


def _to_dict(state: LearnerState) -> dict[str, Any]:
    return {
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "baseline": state.baseline.state(),
        "policy_version": state.policy_version,
        "offsets": [[place.topic, place.partition, n] for place, n in state.offsets.items()],
        "seen_ids": list(state.seen_ids),
        **{name: getattr(state, name) for name in PLAIN_FIELDS},
    }


def named_offsets(offsets: Offsets) -> dict[str, int]:
    """Offsets as a manifest spells them: `topic/partition`."""
    return {f"{place.topic}/{place.partition}": offset for place, offset in offsets.items()}
