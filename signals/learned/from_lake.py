"""Observations for the learned reward from the lake: what an early look saw, what the end said."""

from typing import TYPE_CHECKING

from signals.lake_columns import day_of
from signals.learned.rows import Observation, features_of

if TYPE_CHECKING:
    from tendril.lake.lake import Lake

PAIRS = """
WITH early AS (
    SELECT trace_id, arg_min(components, revision) AS components,
        arg_min(reward, revision) AS reward
    FROM episodes
    WHERE day >= $first_day AND maturity <> 'final' AND reward IS NOT NULL GROUP BY trace_id
), ended AS (
    SELECT trace_id, tenant || '/' || user_key AS account, served_at, closed_at, reward
    FROM episodes_latest
    WHERE day >= $first_day AND served_at >= $since AND maturity = 'final' AND reward IS NOT NULL
        AND len(quarantine_ids) = 0 AND lane = 'online' AND outcome <> 'suppressed'
), served AS (
    SELECT trace_id, any_value(latency.total_s) AS total_s,
        any_value(len(completion_token_ids)) AS num_tokens
    FROM traces WHERE day >= $first_day GROUP BY trace_id
)
SELECT account, served_at, closed_at, ended.reward > 0 AS good, early.reward AS default_reward,
    map_keys(components) AS names, map_values(components) AS parts, total_s, num_tokens
FROM ended JOIN early USING (trace_id) JOIN served USING (trace_id)
ORDER BY served_at, trace_id
"""
MARGIN_S = 86_400.0


def observations(lake: "Lake", since: float) -> list[Observation]:
    """Traces served from `since` on whose reward an early look knew. Raises `LakeUnavailable`."""
    from tendril.lake.query import rows_of

    found = rows_of(lake, PAIRS, {"since": since, "first_day": day_of(since - MARGIN_S)})
    columns = ("account", "served_at", "closed_at", "good", "default_reward", "names", "parts",
               "total_s", "num_tokens")  # fmt: skip
    return [
        Observation(
            user_key=str(account),
            served_at=float(served_at),
            known_at=float(closed_at),
            features=features_of(
                dict(zip(names, map(float, parts), strict=True)),
                latency_s=float(total_s), num_tokens=int(num_tokens),
            ),
            default_reward=float(reward),
            good=bool(good),
        )
        for account, served_at, closed_at, good, reward, names, parts, total_s, num_tokens in zip(
            *(found[name] for name in columns), strict=True
        )
    ]  # fmt: skip
