"""The daily refit: how late outcomes come and what a bucket's mean reward is, from the lake.

Delays: from the trace to the first thing its user did about it, by bucket, on the latest traces
whose windows are over (`debias.delay`). Centres: rewards of the last cohort that are final.
"""

import logging
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from signals.centring import Observed, fit_centres
from signals.debias.delay import Outcomes
from signals.debias.delay_weights import Refit, refit
from signals.fitted import Fits
from signals.lake_columns import day_of, numbers
from tendril.log import EventLog
from tendril.records import RewardFit
from tendril.settings import Settings

if TYPE_CHECKING:
    from tendril.lake.lake import Lake

NO_OUTCOME = ("suggestion.shown", "suggestion.suppressed", "retention.measured", "grader.scored")
"""What says nothing about how soon a user decides."""
DELAYS = """
WITH judged AS (
    SELECT trace_id, bucket FROM episodes_latest
    WHERE day >= $first_day AND len(quarantine_ids) = 0
), begun AS (
    SELECT trace_id, min(appended_at) AS started_at FROM traces
    WHERE day >= $first_day AND appended_at > $since AND NOT suppressed AND lane = 'online'
    GROUP BY trace_id
), decided AS (
    SELECT trace_id, min(appended_at) AS outcome_at FROM feedback
    WHERE day >= $first_day AND NOT list_contains($no_outcome, type) GROUP BY trace_id
)
SELECT bucket, started_at, outcome_at
FROM begun JOIN judged USING (trace_id) LEFT JOIN decided USING (trace_id)
ORDER BY bucket, started_at, trace_id
"""
REWARDS = """
SELECT bucket, reward, weight FROM episodes_latest
WHERE day >= $first_day AND closed_at > $since AND maturity = 'final'
    AND reward IS NOT NULL AND weight > 0 AND len(quarantine_ids) = 0
"""
MARGIN_S = 86_400.0
logger = logging.getLogger(__name__)


class Refitter:
    """Fits when a day has passed since the last time; one thread."""

    def __init__(self, settings: Settings, log: EventLog, lake: "Lake", fits: Fits) -> None:
        self._settings, self._log, self._lake, self._fits = settings.signals, log, lake, fits
        self._tried_at = 0.0

    def look(self, now: float) -> bool:
        """Whether it fitted. Raises `LogUnavailable`, `LakeUnavailable`."""
        every_s = self._settings.refit_every_s
        if now - max(self._fits.made_at, self._tried_at) < every_s:
            return False
        found, rewards = self._delays(now), self._rewards(now)
        self._tried_at = now  # only here: what the lake could not tell is asked again soon
        for refused in found.refused:
            logger.info("%s: %s", refused.what, refused.reason)
        for surface in found.drifted:
            logger.warning("delays of %s are no longer those of the fit in use", surface)
        centres = fit_centres(rewards, fitted_at=now)
        made = [RewardFit(
            kind="delays", digest=found.weights.digest, content=found.weights.to_bytes(),
            made_at=now,
        )]  # fmt: skip
        if centres.by_bucket:  # a week without rewards has no means: the last ones stay
            made.append(RewardFit(
                kind="centres", digest=centres.digest,
                content=msgspec.json.encode(centres, order="sorted"), made_at=now,
            ))  # fmt: skip
        self._log.append([(RewardFit.TOPIC, fit) for fit in made])
        return True

    def _delays(self, now: float) -> Refit:
        window_s, cohort_s = self._settings.feedback_window_s, self._settings.refit_cohort_s
        rows = self._rows(DELAYS, now - window_s - cohort_s, no_outcome=list(NO_OUTCOME))
        buckets_N = np.asarray(rows["bucket"], str)
        started_at_N, outcome_at_N = numbers(rows["started_at"]), numbers(rows["outcome_at"])
        by_bucket = {
            str(bucket): Outcomes(
                started_at_N[buckets_N == bucket], outcome_at_N[buckets_N == bucket]
            )
            for bucket in np.unique(buckets_N)
        }
        return refit(
            by_bucket, self._fits.at(now).delays, made_at=now, window_s=window_s,
            cohort_s=cohort_s,
        )  # fmt: skip

    def _rewards(self, now: float) -> list[Observed]:
        rows = self._rows(REWARDS, now - self._settings.refit_cohort_s)
        columns = (rows["bucket"], numbers(rows["reward"]), numbers(rows["weight"]))
        return [Observed(str(b), float(r), float(w)) for b, r, w in zip(*columns, strict=True)]

    def _rows(self, sql: str, since: float, **more: Any) -> dict[str, Any]:
        from tendril.lake.query import rows_of

        window_s = self._settings.feedback_window_s
        first_day = day_of(since - window_s - MARGIN_S)
        return rows_of(self._lake, sql, {"since": since, "first_day": first_day} | more)
