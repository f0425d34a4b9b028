"""The gate: is a candidate at least as good as the live version on held-out decisions?

Non-inferiority: a check passes when the whole 95 % interval is better than its limit, fails when
the whole interval is worse, and is inconclusive in between or with too little data. Only a report
in which every check passes lets a version through. Letters: N = episodes, S = their segments in
order, T = completion tokens of all segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np

from kernels.exploration import exploration_weight
from shipper.off_policy import (
    Floats,
    effective_samples,
    importance_ratio,
    paired_value,
)
from tendril.records import Check, Episode, EvalReport
from tendril.settings import ShippingSettings

if TYPE_CHECKING:  # kernels.scoring loads torch
    from kernels.scoring import Comparison

MIN_SESSIONS = 5
"""Intervals count sessions, not episodes; below this they mean little."""
MIN_EFFECTIVE_SHARE = 0.05
MAX_NUMERICS_GAP = 0.01
"""Nats a token between what served and what the gate computes for the same weights."""
Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Replay:
    """Logged decisions scored by both policies, as arrays."""

    episodes: Sequence[Episode]
    candidate_T: Floats
    live_T: Floats
    behavior_T: Floats
    kl_T: Floats
    candidate_silence_S: Floats
    live_silence_S: Floats
    candidate_weight_N: Floats
    live_weight_N: Floats
    num_non_finite: int


def evaluate(
    comparisons: Sequence["Comparison"],
    episodes: Sequence[Episode],
    policy_version: int,
    against_version: int,
    settings: ShippingSettings,
    *,
    silence_token_id: int | None,
) -> EvalReport:
    """All checks. `comparisons` has one entry for each segment of each episode, in order."""
    replay = arrange(comparisons, episodes, silence_token_id)
    checks = [numerics_check(replay, against_version), reward_check(replay, settings)]
    checks.append(kl_check(replay, settings.kl_budget))
    if silence_token_id is not None:
        checks.append(silence_check(replay, settings.max_silence_change))
    if any(episode.route == "suggestion" for episode in episodes) or not episodes:
        checks.append(accepted_check(replay, settings))
    return EvalReport(
        policy_version=policy_version, against_version=against_version, checks=tuple(checks)
    )


def arrange(
    comparisons: Sequence["Comparison"], episodes: Sequence[Episode], silence_token_id: int | None
) -> Replay:
    """Comparisons and episodes as arrays, with each episode's importance weights."""
    segments = [segment for episode in episodes for segment in episode.segments]
    if len(segments) != len(comparisons):
        raise ValueError(f"got {len(comparisons)} comparisons for {len(segments)} segments")
    candidate_T = _concatenate([c.candidate_logprobs_T for c in comparisons])
    live_T = _concatenate([c.live_logprobs_T for c in comparisons])
    kl_T = _concatenate([c.kl_T for c in comparisons])
    behavior_T = np.array(list(chain.from_iterable(s.behavior_logprobs for s in segments)), float)
    if len(candidate_T) != len(behavior_T):
        raise ValueError(f"got {len(candidate_T)} scored tokens for {len(behavior_T)} logged ones")
    silence_2S = np.array([(c.candidate_silence, c.live_silence) for c in comparisons], float)
    silence_2S = silence_2S.reshape(-1, 2).T
    sizes_N = [sum(len(s.completion_token_ids) for s in e.segments) for e in episodes]
    explored_N = np.array([_exploration_weight(e, silence_token_id) for e in episodes], float)
    behavior_N = _sums(behavior_T, sizes_N)
    return Replay(
        episodes=episodes,
        candidate_T=candidate_T,
        live_T=live_T,
        behavior_T=behavior_T,
        kl_T=kl_T,
        candidate_silence_S=silence_2S[0],
        live_silence_S=silence_2S[1],
        candidate_weight_N=explored_N * importance_ratio(_sums(candidate_T, sizes_N), behavior_N),
        live_weight_N=explored_N * importance_ratio(_sums(live_T, sizes_N), behavior_N),
        num_non_finite=sum(
            int((~np.isfinite(values)).sum())
            for values in (candidate_T, live_T, behavior_T, kl_T, silence_2S)
        ),
    )


def _concatenate(parts: Sequence[object]) -> Floats:
    arrays = [np.asarray(part, dtype=np.float64) for part in parts]
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _sums(x_T: Floats, sizes: Sequence[int]) -> Floats:
    """[N] sums of consecutive runs of the given sizes."""
    owner_T = np.repeat(np.arange(len(sizes)), sizes)
    return np.bincount(owner_T, weights=x_T, minlength=len(sizes)).astype(np.float64)


def _exploration_weight(episode: Episode, silence_token_id: int | None) -> float:
    weight = 1.0
    for segment in episode.segments:
        if (arm := segment.exploration) is not None:
            silent = segment.completion_token_ids[:1] == (silence_token_id,)
            weight *= exploration_weight(arm.share, arm.silence_logprob, silent)
    return weight


def numerics_check(replay: Replay, against_version: int) -> Check:
    """Does the gate compute what serving logged? Fails on any log-prob that is not finite."""
    own_T = np.array(
        [
            all(span.policy_version == against_version for span in segment.policy_spans)
            for episode in replay.episodes
            for segment in episode.segments
            for _ in segment.completion_token_ids
        ],
        bool,
    )
    num_samples = int(own_T.sum())
    value: float | None = None
    verdict: Verdict
    if replay.num_non_finite:
        verdict, why = "fail", f"{replay.num_non_finite} numbers are not finite"
    elif not num_samples:
        verdict, why = "inconclusive", f"no held-out episode by version {against_version}"
    else:
        value = float(np.abs(replay.live_T - replay.behavior_T)[own_T].mean())
        verdict, why = ("pass" if value <= MAX_NUMERICS_GAP else "fail"), ""
    return _check("numerics", value, MAX_NUMERICS_GAP, num_samples, verdict, why)


def reward_check(replay: Replay, settings: ShippingSettings) -> Check:
    """Off-policy difference of reward per decision; may fall by `reward_margin`."""
    limit, num_samples = -settings.reward_margin, len(replay.episodes)
    if why := unsupported(replay, settings):
        return _check("reward", None, limit, num_samples, "inconclusive", why)
    counts_N = np.array([episode.weight for episode in replay.episodes])
    value = paired_value(
        np.array([episode.reward for episode in replay.episodes], float),
        replay.candidate_weight_N * counts_N,
        replay.live_weight_N * counts_N,
        [episode.session_id for episode in replay.episodes],
    )
    why = f"{value.candidate:+.4f} against {value.live:+.4f} a decision"
    verdict = not_below(limit, value.difference_ci95)
    return _check(
        "reward", value.difference, limit, num_samples, verdict, why, value.difference_ci95
    )


def accepted_check(replay: Replay, settings: ShippingSettings) -> Check:
    """Off-policy relative change of accepted bytes per decision; silence does not escape it."""
    limit, num_samples = -settings.max_accepted_drop, len(replay.episodes)
    if why := unsupported(replay, settings):
        return _check("accepted_bytes", None, limit, num_samples, "inconclusive", why)
    value = paired_value(
        np.array([episode.accepted_bytes for episode in replay.episodes], float),
        replay.candidate_weight_N,
        replay.live_weight_N,
        [episode.session_id for episode in replay.episodes],
    )
    if value.relative_change is None or value.relative_ci95 is None:
        why = "nothing was accepted"
        return _check("accepted_bytes", None, limit, num_samples, "inconclusive", why)
    why = f"{value.candidate:.3f} against {value.live:.3f} bytes a decision"
    verdict = not_below(limit, value.relative_ci95)
    return _check(
        "accepted_bytes", value.relative_change, limit, num_samples, verdict, why,
        value.relative_ci95,
    )  # fmt: skip


def kl_check(replay: Replay, budget: float) -> Check:
    """Mean exact KL(candidate || live), nats a token."""
    return _mean_within("kl", replay.kl_T, budget, len(replay.kl_T))


def silence_check(replay: Replay, limit: float) -> Check:
    """Change of the mean probability of silence: going silent fails, and so does going chatty."""
    change_S = replay.candidate_silence_S - replay.live_silence_S
    return _mean_within("silence", change_S, limit, len(change_S))


def _mean_within(name: str, values: Floats, limit: float, num_samples: int) -> Check:
    if not num_samples:
        return _check(name, None, limit, 0, "inconclusive", "no held-out episode")
    value = float(values.mean())
    if not np.isfinite(value):
        return _check(name, None, limit, num_samples, "fail", "not finite")
    return _check(name, value, limit, num_samples, "pass" if abs(value) <= limit else "fail")


def unsupported(replay: Replay, settings: ShippingSettings) -> str:
    """Why the logged decisions cannot value these policies; empty when they can."""
    num_samples = len(replay.episodes)
    if num_samples < settings.gate_min_episodes:
        return f"expected >= {settings.gate_min_episodes} held-out episodes, got {num_samples}"
    num_sessions = len({episode.session_id for episode in replay.episodes})
    if num_sessions < MIN_SESSIONS:
        return f"expected >= {MIN_SESSIONS} held-out sessions, got {num_sessions}"
    if replay.num_non_finite:
        return f"{replay.num_non_finite} numbers are not finite"
    effective = min(map(effective_samples, (replay.candidate_weight_N, replay.live_weight_N)))
    needed = max(MIN_EFFECTIVE_SHARE * num_samples, settings.gate_min_episodes / 2)
    if effective < needed:
        return f"expected an effective sample size >= {needed:.0f}, got {effective:.0f}"
    return ""


def not_below(limit: float, ci95: tuple[float, float]) -> Verdict:
    """Non-inferiority of something of which more is better."""
    if ci95[0] > limit:
        return "pass"
    return "fail" if ci95[1] < limit else "inconclusive"


def _check(
    name: str,
    value: float | None,
    limit: float,
    num_samples: int,
    verdict: Verdict,
    why: str = "",
    ci95: tuple[float, float] | None = None,
) -> Check:
    return Check(
        name=name, value=value, ci95=ci95, limit=limit, num_samples=num_samples, verdict=verdict,
        why=why,
    )  # fmt: skip
