"""Detectors 6 to 9, 12: figures of one policy that left the past week's, volume, style, undos.

The tolerance is 4 MAD of the week's windows, and never less than 4 standard errors of the window
itself. Volume and missing parts only alarm: a policy that learns is meant to move the first, and
the recipe renormalises the second.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from signals.trust.columns import Traces
from signals.trust.figures import Measured, baseline, figures_of, rows, tolerance
from signals.trust.finding import Finding
from signals.trust.window import Window

MIN_ROWS = 200
"""Of one policy in the window; fewer say nothing."""
MAX_VOLUME_CHANGE = 0.1
FLAT_WINDOWS = 2


class Rule(NamedTuple):
    """One figure that is watched."""

    figure: str
    relative: float = 0.0
    falls_too: bool = True


VOLUME = tuple(
    Rule(name, MAX_VOLUME_CHANGE)
    for name in ("show_rate", "shown_per_session", "edit_rate", "kept_bytes")
)
STYLE = (
    Rule("clarify_rate", falls_too=False),
    Rule("refusal_rate"),
    Rule("invalid_tool_call_rate", falls_too=False),
    Rule("num_tokens", MAX_VOLUME_CHANGE),
    Rule("sign_off_rate", falls_too=False),
    Rule("flattery_rate", falls_too=False),
)
UNDOS = (Rule("undone_early_rate", falls_too=False),)


def volume(window: Window) -> list[Finding]:
    """7: suggestions, edits or kept text moved by more than a tenth and more than noise."""
    return _drifted(window, "volume", VOLUME, holds=False)


def style(window: Window) -> list[Finding]:
    """8: clarifying questions, refusals, broken calls, length, sign-offs, flattery."""
    return _drifted(window, "style", STYLE)


def undos(window: Window) -> list[Finding]:
    """9: more of what was taken is undone at once."""
    return _drifted(window, "undos", UNDOS)


def missing_components(window: Window) -> list[Finding]:
    """12: a part of the reward is absent more, or less, often than it was."""
    names = [name for name in window.history if name.startswith("missing/")]
    names += [f"missing/{name}" for name in window.traces.components]
    rules = tuple(Rule(name) for name in sorted(set(names)))
    return _drifted(window, "missing_components", rules, holds=False)


def divergence(window: Window) -> list[Finding]:
    """6: the reward is up in two windows running, and what it stands for is not."""
    past_reward = window.history.get("reward", ())
    past_kept = window.history.get("retention", ())
    reward, kept = baseline(past_reward[:-1]), baseline(past_kept[:-1])
    if reward is None or kept is None:
        return []
    found = []
    for version, part in policies(window.traces):
        figures = figures_of(part)
        now, now_kept = figures["reward"], figures["retention"]
        if min(now.num_rows, now_kept.num_rows) < MIN_ROWS:
            continue
        rise, margin = tolerance(now, reward), tolerance(now_kept, kept)
        up = min(now.value, past_reward[-1]) > reward.median + rise
        flat = max(now_kept.value, past_kept[-1]) <= kept.median + margin
        if up and flat:
            why = (
                f"reward {now.value:.3f}, of the week {reward.median:.3f}, {FLAT_WINDOWS} windows "
                f"running, while retention is {now_kept.value:.3f}, of the week {kept.median:.3f}"
            )
            limit = reward.median + rise
            found.append(_finding(window, "divergence", version, now.value, limit, why))
    return found


def policies(traces: Traces) -> Iterator[tuple[int, Traces]]:
    """Each policy version with its rows, if they are enough to say something."""
    versions, counts = np.unique(traces.policy_version, return_counts=True)
    for version, num_rows in zip(versions, counts, strict=True):
        if num_rows >= MIN_ROWS and version >= 0:
            yield int(version), rows(traces, traces.policy_version == version)


def _drifted(
    window: Window, detector: str, rules: tuple[Rule, ...], *, holds: bool = True
) -> list[Finding]:
    found = []
    for version, part in policies(window.traces):
        figures = figures_of(part)
        for rule in rules:
            crossed = _crossed(window, rule, figures.get(rule.figure))
            if crossed is not None:
                figure, limit, median = crossed
                why = f"{rule.figure} of policy {version} {figure:.4g}, of the week {median:.4g}"
                found.append(_finding(window, detector, version, figure, limit, why, holds=holds))
    return found


def _crossed(window: Window, rule: Rule, now: Measured | None) -> tuple[float, float, float] | None:
    """(figure, limit, median) where the figure left its tolerance."""
    normal = baseline(window.history.get(rule.figure, ()))
    if normal is None or now is None or now.num_rows < MIN_ROWS // 4:
        return None
    margin = tolerance(now, normal, relative=rule.relative)
    distance = now.value - normal.median
    if distance > margin or (rule.falls_too and distance < -margin):
        limit = normal.median + (margin if distance > 0 else -margin)
        return now.value, limit, normal.median
    return None


def _finding(
    window: Window,
    detector: str,
    version: int,
    figure: float,
    limit: float,
    why: str,
    *,
    holds: bool = True,
) -> Finding:
    return Finding(
        detector=detector, scope="policy", scope_id=str(version), figure=figure, limit=limit,
        since=window.since, until=window.until, why=why, holds=holds,
    )  # fmt: skip
