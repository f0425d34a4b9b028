"""A policy against another on held-out prompts, paired, with honest intervals.

Prompts come from files that neither the base model nor the simulated users' traffic contains. Each
policy answers each prompt several times; differences are taken prompt by prompt, and intervals come
from resampling whole files, since prompts of one file resemble each other.
"""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_rl.autocomplete.corpus import house_files
from offline_rl.autocomplete.judgement import match, recipe_reward
from offline_rl.autocomplete.personas import PERSONAS
from offline_rl.autocomplete.typing_positions import Pause, pause_at, pause_offsets

NUM_RESAMPLES = 4_000


class HeldOutPrompt(NamedTuple):
    """One pause in a held-out file."""

    pause: Pause
    max_tokens: int
    file: str


class Outcomes(NamedTuple):
    """One policy on all prompts; every array is [P], the mean over its answers to each prompt."""

    reward: NDArray[np.float64]
    shown: NDArray[np.float64]
    accepted: NDArray[np.float64]
    """Share of answers that were shown and accepted, whole or in part."""
    accepted_bytes: NDArray[np.float64]


def held_out_prompts(num_prompts: int, seed: int) -> list[HeldOutPrompt]:
    """`num_prompts` pauses, spread over the held-out files by their length."""
    places = [
        (file, offset)
        for file in house_files()
        if file.split == "held_out"
        for offset in pause_offsets(file.text)
    ]
    rng = random.Random(seed)
    chosen = rng.sample(places, min(num_prompts, len(places)))
    return [
        HeldOutPrompt(pause_at(file.text, offset), rng.choice(PERSONAS).max_tokens, file.name)
        for file, offset in chosen
    ]


def judge(prompts: Sequence[HeldOutPrompt], answers: Sequence[Sequence[str]]) -> Outcomes:
    """Judge `answers[p]`, the texts given to prompt p; an empty text is silence."""
    rows: list[tuple[float, float, float, float]] = []
    for prompt, texts in zip(prompts, answers, strict=True):
        found = [match(text, prompt.pause.following) if text else None for text in texts]
        rows.append(
            (
                _mean([recipe_reward(m) for m in found]),
                _mean([float(m is not None) for m in found]),
                _mean([float(m is not None and m.matching_bytes > 0) for m in found]),
                _mean([float(m.matching_bytes) if m else 0.0 for m in found]),
            )
        )
    columns = np.asarray(rows, dtype=np.float64).T
    return Outcomes(*columns)


def summary(outcomes: Outcomes) -> dict[str, float]:
    """The policy in numbers: acceptance is a share of what was shown, the rest per decision."""
    shown = float(outcomes.shown.mean())
    return {
        "acceptance": float(outcomes.accepted.mean()) / shown if shown else 0.0,
        "shown_rate": shown,
        "reward_per_decision": float(outcomes.reward.mean()),
        "accepted_bytes_per_decision": float(outcomes.accepted_bytes.mean()),
    }


def difference(
    prompts: Sequence[HeldOutPrompt], base: Outcomes, other: Outcomes, seed: int
) -> dict[str, Any]:
    """`other` against `base`: relative changes, and 95 % intervals by resampling files."""
    draws = _file_resamples([prompt.file for prompt in prompts], seed)  # [R, P] weights
    rewards = (draws @ (other.reward - base.reward)) / draws.sum(1)
    acceptance = _ratio(
        _ratio(draws @ other.accepted, draws @ other.shown),
        _ratio(draws @ base.accepted, draws @ base.shown),
    )
    accepted_bytes = _ratio(draws @ other.accepted_bytes, draws @ base.accepted_bytes)
    ours, theirs = summary(other), summary(base)
    return {
        "reward": ours["reward_per_decision"] - theirs["reward_per_decision"],
        "reward_ci95": _interval(rewards),
        "acceptance_relative": ours["acceptance"] / max(theirs["acceptance"], 1e-9) - 1,
        "acceptance_relative_ci95": _interval(acceptance - 1),
        "shown_relative": ours["shown_rate"] / max(theirs["shown_rate"], 1e-9) - 1,
        "accepted_bytes_relative": ours["accepted_bytes_per_decision"]
        / max(theirs["accepted_bytes_per_decision"], 1e-9)
        - 1,
        "accepted_bytes_relative_ci95": _interval(accepted_bytes - 1),
    }


def _file_resamples(files: Sequence[str], seed: int) -> NDArray[np.float64]:
    """How often each prompt is drawn when whole files are drawn with replacement; [R, P]."""
    names, file_of_P = np.unique(np.asarray(files), return_inverse=True)
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(names), [1 / len(names)] * len(names), size=NUM_RESAMPLES)
    return counts[:, file_of_P].astype(np.float64)


def _ratio(over: NDArray[np.float64], under: NDArray[np.float64]) -> NDArray[np.float64]:
    ratio: NDArray[np.float64] = over / np.maximum(under, 1e-9)
    return ratio


def _interval(values: NDArray[np.float64]) -> list[float]:
    return [float(x) for x in np.quantile(values, (0.025, 0.975))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
