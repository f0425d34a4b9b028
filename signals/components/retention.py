"""Retention: the weighted share of an edit that is still there at the recipe's horizons.

A horizon that is not due yet is pending; one that is due and has no measurement is censored if it
could not be observed, else missing. All three are left out and the weights of the rest
renormalised, and each is named, since they mean different things (anchors 3).
"""

from collections.abc import Sequence
from typing import NamedTuple

from signals.components.parts import Absence, Absent, weighted_mean
from signals.durations import age_at_s, duration_s
from signals.edit import CENSORING, Edit
from signals.recipe import Horizon
from tendril.records import Feedback, Trace


class Moment(NamedTuple):
    """From where a trace is looked at."""

    trace: Trace
    age_s: float
    """Since the trace's completion; infinite at the end."""
    skew_s: float
    """Of the session's clock."""
    ended_by: Feedback | None = None
    """The end of the session, if it is over."""

    def seconds_to(self, event: Feedback) -> float:
        """From the trace's completion."""
        return age_at_s(self.trace, event, skew_s=self.skew_s)


class Retention(NamedTuple):
    """What is known about how much of an edit is left."""

    kept: float | None
    """In [0, 1]; None if no horizon was observed."""
    absent: Absent = ()
    """Horizons that are left out, in order of time, and why."""


def retention_of(horizons: Sequence[Horizon], edit: Edit, moment: Moment) -> Retention:
    """k = sum w_h k_h / sum w_h over the observed `horizons`, which are in order of time.

    An undo that stands is an observation too: from then on nothing is kept, and at no horizon
    if clocks cannot tell when it was.
    """
    observed: list[tuple[float, float]] = []
    absent: list[tuple[str, Absence]] = []
    undone_s = undone_after_s(edit, moment.skew_s)
    is_undone = edit.undone_by is not None
    for horizon in horizons:
        is_last = horizon is horizons[-1]
        if is_undone and (undone_s is None or undone_s <= horizon.horizon_s):
            share: float | None = 0.0
        elif is_last and edit.committed is not None:
            share = edit.committed
        else:
            share = edit.kept.get(horizon.horizon_s)
        if share is None:
            absent.append((horizon.name, _why_absent(horizon.horizon_s, edit, moment)))
        else:
            observed.append((horizon.weight, share))
    return Retention(weighted_mean(observed), tuple(absent))


def undone_after_s(edit: Edit, skew_s: float) -> float | None:
    """Seconds from placement to the undo that stands; None without one, or if clocks disagree."""
    if edit.placed_by is None or edit.undone_by is None:
        return None
    return duration_s(edit.placed_by, edit.undone_by, skew_s=skew_s)


def _why_absent(horizon_s: float, edit: Edit, moment: Moment) -> Absence:
    if horizon_s in edit.unobservable:
        return "censored" if edit.unobservable[horizon_s] in CENSORING else "missing"
    placed_s = moment.seconds_to(edit.placed_by) if edit.placed_by else 0.0
    if moment.ended_by and moment.seconds_to(moment.ended_by) < placed_s + horizon_s:
        return "censored"
    return "pending" if moment.age_s < placed_s + horizon_s else "missing"
