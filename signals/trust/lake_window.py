"""One window of the lake as the columns that detectors look at.

Traces are those served in the window, with the newest word about each; events are those logged in
it. Both are read with conditions on `day`, so a long history costs nothing.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from signals.lake_columns import day_of, numbers
from signals.trust.columns import INTS, NAMES, Events, FloatArray, Traces
from signals.trust.grader_health import Score

if TYPE_CHECKING:
    from tendril.lake.lake import Lake

SPAN = "day BETWEEN $first_day AND $last_day"
TRACES = f"""
WITH served AS (
    SELECT * FROM traces
    WHERE {SPAN} AND served_at >= $since AND served_at < $until
    QUALIFY row_number() OVER (PARTITION BY trace_id ORDER BY partition, "offset") = 1
), said AS (
    SELECT * FROM (
        SELECT * FROM episodes WHERE {SPAN} AND served_at >= $since AND served_at < $until
        UNION ALL BY NAME
        SELECT * FROM quarantine WHERE {SPAN} AND served_at >= $since AND served_at < $until
    )
    QUALIFY row_number() OVER (PARTITION BY trace_id ORDER BY revision DESC, episode_id) = 1
), done AS (
    SELECT trace_id,
        min(client_time) FILTER (type IN ('suggestion.accepted', 'suggestion.accepted_partially',
                                          'content.inserted')) AS placed_at,
        min(client_time) FILTER (type = 'edit.undone') AS undone_at,
        arg_max(value, horizon_s) FILTER (type = 'retention.measured') AS retention
    FROM feedback WHERE {SPAN} AND ingested_at >= $since GROUP BY trace_id
)
SELECT trace_id, said.tenant || '/' || said.user_key AS account, said.tenant AS tenant,
    said.session_id AS session,
    coalesce(policy_spans[1].policy_version, -1) AS policy_version,
    said.served_at AS served_at, coalesce(account_age_s, 'infinity'::DOUBLE) AS account_age_s,
    reward, weight, (NOT suppressed)::DOUBLE AS shown,
    CASE WHEN suppressed THEN NULL ELSE (placed_at IS NOT NULL)::DOUBLE END AS edited,
    CASE WHEN placed_at IS NOT NULL
         THEN coalesce(undone_at - placed_at <= $undo_within_s, false)::DOUBLE
    END AS undone_early,
    retention, shown_bytes::DOUBLE AS shown_bytes, accepted_bytes::DOUBLE AS kept_bytes,
    len(completion_token_ids)::DOUBLE AS num_tokens,
    CASE WHEN len(tool_calls) > 0
         THEN (len(list_filter(tool_calls, lambda c: NOT c.valid)) > 0)::DOUBLE
    END AS invalid_tool_call,
    arm, propensity, outcome, latency.total_s AS total_s,
    map_keys(components) AS names, map_values(components) AS parts
FROM served JOIN said USING (trace_id) LEFT JOIN done USING (trace_id)
WHERE served.lane = 'online'
ORDER BY served_at, trace_id
"""
EVENTS = f"""
WITH recent AS (
    SELECT * FROM feedback WHERE {SPAN} AND ingested_at >= $since AND ingested_at < $until
    QUALIFY row_number() OVER (PARTITION BY trace_id, event_id ORDER BY partition, "offset") = 1
), shown AS (
    SELECT trace_id, min(client_time) AS shown_at FROM feedback
    WHERE {SPAN} AND type = 'suggestion.shown' GROUP BY trace_id
), served AS (
    SELECT trace_id, any_value(policy_spans[1].policy_version) AS policy_version FROM traces
    WHERE {SPAN} GROUP BY trace_id
)
SELECT trace_id, tenant || '/' || user_key AS account,
    coalesce(policy_version, -1) AS policy_version, type, ingested_at AS at, value,
    visible_ms::DOUBLE AS visible_ms,
    CASE WHEN type LIKE 'suggestion.%' AND type <> 'suggestion.shown'
         THEN 1000 * (client_time - shown_at) END AS decided_after_ms,
    CASE WHEN type = 'grader.scored'
         THEN grader || '@' || coalesce(grader_version, 'None') ELSE '' END AS grader,
    error IS NOT NULL AS failed
FROM recent LEFT JOIN shown USING (trace_id) LEFT JOIN served USING (trace_id)
WHERE trace_id IS NOT NULL
ORDER BY ingested_at, trace_id, event_id
"""
SCORES_BEFORE = f"""
SELECT grader || '@' || coalesce(grader_version, 'None') AS grader, value FROM feedback
JOIN (SELECT trace_id, any_value(policy_spans[1].policy_version) AS policy_version FROM traces
      WHERE {SPAN} GROUP BY trace_id) USING (trace_id)
WHERE {SPAN} AND type = 'grader.scored' AND value IS NOT NULL AND ingested_at < $since
    AND list_contains($versions, policy_version)
QUALIFY row_number() OVER (PARTITION BY trace_id, event_id ORDER BY partition, "offset") = 1
ORDER BY ingested_at DESC LIMIT 20000
"""
SCORES = f"""
SELECT grader || '@' || coalesce(grader_version, 'None') AS grader, ingested_at AS at, value
FROM feedback
WHERE {SPAN} AND type = 'grader.scored' AND ingested_at >= $since AND ingested_at < $until
QUALIFY row_number() OVER (PARTITION BY trace_id, event_id ORDER BY partition, "offset") = 1
ORDER BY ingested_at, trace_id, event_id
"""
MARGIN_S = 86_400.0
"""Around the window: feedback may come before its trace, and what was shown a while ago."""


class LakeWindow(NamedTuple):
    """What the lake knows of [since, until)."""

    traces: Traces
    events: Events
    sample: Mapping[str, FloatArray]
    """Numbers whose distribution is watched, by name."""
    num_unknown: int
    """Traces about whose fate nobody ever said anything."""
    earlier_scores: Mapping[str, FloatArray]
    """By grader, of the same policies, before the window."""


def read_scores(lake: "Lake", since: float, until: float) -> dict[str, list[Score]]:
    """By grader, its scores of [since, until) in order. Raises `LakeUnavailable`."""
    from tendril.lake.query import rows_of

    rows = rows_of(lake, SCORES, _span(since, until) | {"since": since, "until": until})
    found: dict[str, list[Score]] = {}
    for name, at, value in zip(rows["grader"], rows["at"], numbers(rows["value"]), strict=True):
        found.setdefault(str(name), []).append(Score(float(at), float(value)))
    return found


def read_window(lake: "Lake", since: float, until: float, *, undo_within_s: float) -> LakeWindow:
    """Raises `LakeUnavailable`."""
    from tendril.lake.query import rows_of

    span = _span(since, until)
    within = span | {"since": since, "until": until}
    found = rows_of(lake, TRACES, within | {"undo_within_s": undo_within_s})
    traces, events = _traces(found), _events(rows_of(lake, EVENTS, within))
    versions = sorted({int(version) for version in traces.policy_version})
    scores = rows_of(lake, SCORES_BEFORE, span | {"since": since, "versions": versions})
    return LakeWindow(
        traces,
        events,
        {"total_s": numbers(found["total_s"]), "visible_ms": events.visible_ms,
         "shown_bytes": traces.shown_bytes},
        sum(outcome == "unknown" for outcome in found["outcome"]),
        {str(name): numbers(scores["value"][scores["grader"] == name])
         for name in np.unique(np.asarray(scores["grader"], str))},
    )  # fmt: skip


def _span(since: float, until: float) -> dict[str, Any]:
    return {
        "first_day": day_of(since - MARGIN_S),
        "last_day": day_of(until + MARGIN_S),
    }


def _traces(found: Mapping[str, Any]) -> Traces:
    columns = _columns(Traces, found)
    parts = [dict(zip(keys, values, strict=True)) if keys is not None else {}
             for keys, values in zip(found["names"], found["parts"], strict=True)]  # fmt: skip
    names = sorted({name for part in parts for name in part})
    components = {
        name: np.array([part.get(name, math.nan) for part in parts], float) for name in names
    }
    return Traces(**columns, components=components)


def _events(found: Mapping[str, Any]) -> Events:
    failed = np.asarray(found["failed"], bool)
    return Events(**(_columns(Events, found) | {"failed": failed}))


def _columns(table: type[Traces] | type[Events], found: Mapping[str, Any]) -> dict[str, Any]:
    num_rows = len(found["trace_id"])
    columns: dict[str, Any] = {}
    for name in table.__dataclass_fields__:
        if name in ("components", "failed"):
            continue
        if name in NAMES:
            columns[name] = np.asarray(found[name], str)
        elif name in INTS:
            columns[name] = np.asarray(found[name], np.int64)
        else:  # what depends on words is not in the lake
            columns[name] = numbers(found[name]) if name in found else np.full(num_rows, np.nan)
    return columns
