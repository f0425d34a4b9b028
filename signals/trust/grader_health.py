"""Health of one grader, score by score: well, or in an outage since its last known good score.

An error (NaN too) trips after 3 in a row or when more than 2 % of the last five minutes failed; so
do 200 equal scores, and a canary item that is scored wrongly. The outage's rows run from the last
score known good, which for a constant or wrong grader is before the first suspect one, to recovery:
`RECOVERY_SCORES` good scores in a row, a right canary among them if a canary tripped it. Nothing
is filled in: a row without its mandatory score is not trained on; re-grading makes a new score.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from signals.trust.finding import Finding
from signals.trust.graders import (
    CANARY_TOLERANCE,
    CONSTANT_SCORES,
    CONSTANT_STD,
    MAX_ERROR_SHARE,
    MIN_ERRORS,
)

RECENT_S = 300.0
MAX_RECENT = 10_000
"""Scores of the last five minutes that are kept for the rate; beyond it the oldest go first."""
RECOVERY_SCORES = 20
WRONG_CANARY = "an item of known score is scored wrongly"


class Score(NamedTuple):
    """One answer of a grader; `value` None: it failed. `expected`: the item was a canary."""

    at: float
    value: float | None
    expected: float | None = None

    @property
    def failed(self) -> bool:
        return self.value is None or not math.isfinite(self.value)


class Outage(NamedTuple):
    """Rows graded in (`since`, `until`) are in doubt; `until` None: it goes on."""

    grader: str
    since: float
    until: float | None
    why: str
    figure: float
    limit: float

    @property
    def finding(self) -> Finding:
        return Finding(
            detector="grader_outage", scope="grader", scope_id=self.grader, figure=self.figure,
            limit=self.limit, since=math.nextafter(self.since, math.inf), why=self.why,
            until=math.inf if self.until is None else self.until,
        )  # fmt: skip


@dataclass(slots=True)
class GraderHealth:
    """State of one grader, built by `take` alone; a replay builds the same."""

    grader: str
    outage: Outage | None = None
    last_good_at: float = -math.inf
    """Of the newest score that nothing speaks against."""
    _errors_in_a_row: int = 0
    _good_in_a_row: int = 0
    _canary_due: bool = False
    _equal: int = 0
    _value: float = math.nan
    _equal_since: float = -math.inf
    _error_since: float = -math.inf
    _recent: deque[tuple[float, bool]] = field(default_factory=deque)

    def take(self, score: Score) -> Outage | None:
        """One more score. Returns an outage that begins, or ends (then with `until`), with it."""
        self._count(score)
        trip = self._trip(score)
        if trip is None:
            return self._mend(score)
        self._good_in_a_row = 0
        if self.outage is not None:
            return None
        why, figure, limit, since = trip
        self.outage = Outage(self.grader, min(self.last_good_at, since), None, why, figure, limit)
        self._canary_due = why == WRONG_CANARY
        return self.outage

    def _count(self, score: Score) -> None:
        self._recent.append((score.at, score.failed))
        while self._recent[0][0] <= score.at - RECENT_S or len(self._recent) > MAX_RECENT:
            self._recent.popleft()
        if score.failed:
            if self._errors_in_a_row == 0:
                self._error_since = self.last_good_at
            self._errors_in_a_row += 1
        else:
            self._errors_in_a_row = 0
        if score.failed or score.value is None or score.expected is not None:
            return  # canaries repeat, so they say nothing about constancy
        if abs(score.value - self._value) < CONSTANT_STD:
            self._equal += 1
        else:
            self._equal, self._value, self._equal_since = 1, score.value, self.last_good_at

    def _trip(self, score: Score) -> tuple[str, float, float, float] | None:
        """(why, figure, limit, good until) if something is wrong with the grader now."""
        if self._errors_in_a_row >= MIN_ERRORS:
            count = float(self._errors_in_a_row)
            return "failed several times running", count, float(MIN_ERRORS - 1), self._error_since
        failures = sum(failed for _, failed in self._recent)
        share = failures / len(self._recent)
        if failures >= MIN_ERRORS and share > MAX_ERROR_SHARE:
            first = min(at for at, failed in self._recent if failed)
            return "too many failures in five minutes", share, MAX_ERROR_SHARE, _before(first)
        if self._equal >= CONSTANT_SCORES:
            return "scores all the same", 0.0, CONSTANT_STD, self._equal_since
        if score.expected is not None and score.value is not None and not score.failed:
            miss = abs(score.value - score.expected)
            if miss > CANARY_TOLERANCE:
                return WRONG_CANARY, miss, CANARY_TOLERANCE, self.last_good_at
        return None

    def _mend(self, score: Score) -> Outage | None:
        """A score that trips nothing: good, unless an outage is not over yet."""
        if score.failed:
            self._good_in_a_row = 0
            return None
        self._good_in_a_row += 1
        self._canary_due &= score.expected is None
        if self.outage is None:
            self.last_good_at = score.at
            return None
        if self._canary_due or self._good_in_a_row < RECOVERY_SCORES:
            return None
        ended = self.outage._replace(until=score.at)
        self.outage, self.last_good_at = None, score.at
        return ended


def outages(grader: str, scores: Iterable[Score]) -> list[Outage]:
    """Those of a grader's scores in order that began among them, each as it is at the end."""
    health, found = GraderHealth(grader), dict[float, Outage]()
    for score in scores:
        if (outage := health.take(score)) and outage.since > -math.inf:
            found[outage.since] = outage
    return list(found.values())


def _before(at: float) -> float:
    return math.nextafter(at, -math.inf)
