"""Detector 3: accounts whose decisions no person made. Each sign has a floor of evidence.

One account, one window: decisions sooner than people see, gaps like clockwork, always yes or always
no, decisions on what was not visible, more decisions than hands make.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from signals.trust.columns import BoolArray, Events, FloatArray
from signals.trust.finding import Finding
from signals.trust.window import Window

DECISIONS = (
    "suggestion.accepted", "suggestion.accepted_partially", "suggestion.rejected",
)  # fmt: skip
"""`suggestion.ignored` is a client's timer, not a decision."""
REACTION_MS = 150.0
MAX_FAST_SHARE = 0.5
"""Of decisions; a quick person on a quick machine is under it now and then, not mostly."""
MIN_DECISIONS = 20
MIN_GAP_VARIATION = 0.05
"""Coefficient of variation of the gaps; people's is about 1, a timer's near 0."""
MIN_GAPS = 30
MIN_SHOWS = 200
ACCEPT_RATES = (0.01, 0.98)
MIN_VISIBLE = 50
MAX_INVISIBLE_SHARE = 0.9
MAX_DECISIONS_A_MINUTE = 120


class Sign(NamedTuple):
    """What gave an account away."""

    figure: float
    limit: float
    why: str


def bots(window: Window) -> list[Finding]:
    """3: at most one finding an account, by the first sign."""
    reports = reports_visibility(window.events)
    found = []
    for account, part in _accounts(window.events):
        for look in (too_fast, clockwork, one_sided, too_many):
            sign = look(part)
            if sign:
                break
        else:
            sign = unseen(part) if reports else None
        if sign:
            found.append(Finding(
                detector="bots", scope="user", scope_id=account, figure=sign.figure,
                limit=sign.limit, since=window.since, until=window.until, why=sign.why,
            ))  # fmt: skip
    return found


class Decisions(NamedTuple):
    """One account's decisions in the order of time, [D]."""

    at_D: FloatArray
    after_ms_D: FloatArray
    accepted_D: BoolArray
    visible_ms_D: FloatArray


def too_fast(decisions: Decisions) -> Sign | None:
    """Mostly sooner than a person reacts."""
    after_ms = decisions.after_ms_D[~np.isnan(decisions.after_ms_D)]
    if len(after_ms) < MIN_DECISIONS:
        return None
    share = float((after_ms < REACTION_MS).mean())
    why = f"{share:.0%} of decisions within {REACTION_MS:.0f} ms"
    return Sign(share, MAX_FAST_SHARE, why) if share > MAX_FAST_SHARE else None


def clockwork(decisions: Decisions) -> Sign | None:
    """Gaps between decisions that hardly vary."""
    gaps = np.diff(decisions.at_D)
    if len(gaps) < MIN_GAPS or gaps.mean() <= 0:
        return None
    variation = float(gaps.std() / gaps.mean())
    why = f"gaps between decisions vary by {variation:.1%}"
    return Sign(variation, MIN_GAP_VARIATION, why) if variation < MIN_GAP_VARIATION else None


def one_sided(decisions: Decisions) -> Sign | None:
    """Takes all, or nothing, of very many."""
    if len(decisions.accepted_D) < MIN_SHOWS:
        return None
    rate, (low, high) = float(decisions.accepted_D.mean()), ACCEPT_RATES
    why = f"accepts {rate:.1%} of {len(decisions.accepted_D)}"
    if low <= rate <= high:
        return None
    return Sign(rate, high if rate > high else low, why)


def too_many(decisions: Decisions) -> Sign | None:
    """More decisions in some minute than hands make."""
    at_D = decisions.at_D
    ahead_D = np.searchsorted(at_D, at_D + 60.0, side="left") - np.arange(len(at_D))
    most = int(ahead_D.max(initial=0))
    why = f"{most} decisions within a minute"
    limit = MAX_DECISIONS_A_MINUTE
    return Sign(float(most), float(limit), why) if most > limit else None


def unseen(decisions: Decisions) -> Sign | None:
    """Decides on what was never visible; only where other clients report visible time."""
    if len(decisions.visible_ms_D) < MIN_VISIBLE:
        return None
    share = float((np.nan_to_num(decisions.visible_ms_D) <= 0).mean())
    why = f"{share:.0%} of decisions on nothing visible"
    return Sign(share, MAX_INVISIBLE_SHARE, why) if share > MAX_INVISIBLE_SHARE else None


def reports_visibility(events: Events) -> bool:
    """Whether clients measure visible time here: most accounts that decide have done it once."""
    decided_F = np.isin(events.type, DECISIONS)
    accounts = np.unique(events.account[decided_F])
    measured = np.unique(events.account[decided_F & (events.visible_ms > 0)])
    return 2 * len(measured) > len(accounts)


def _accounts(events: Events) -> Iterator[tuple[str, Decisions]]:
    decided_F = np.flatnonzero(np.isin(events.type, DECISIONS))
    if len(decided_F) == 0:  # numpy would split nothing into one part
        return
    order = decided_F[np.lexsort((events.at[decided_F], events.account[decided_F]))]
    names, starts = np.unique(events.account[order], return_index=True)
    for name, part in zip(names, np.split(order, starts[1:]), strict=True):
        yield str(name), Decisions(
            events.at[part], events.decided_after_ms[part],
            events.type[part] != "suggestion.rejected", events.visible_ms[part],
        )  # fmt: skip
