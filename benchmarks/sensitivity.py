"""How much rewards move when one figure of the default recipe moves by a fifth.

On simulated sessions, half suggestions and half chat turns, with rates of the field: 27 % of shown
suggestions accepted, a third of those in part, one in twelve undone; 30 % of chat turns with a
follow-up that says something, one in fifty with a vote. Rows: mean absolute change over the
traces whose reward is known, and the share whose sign turns; the larger of both directions.
"""

import random
from typing import Any

from benchmarks.figures import Figure
from signals.recipe import load_recipe
from signals.sensitivity import Case, Moved, sensitivity
from tendril.records import Feedback, Latency, PolicySpan, Sampling, Trace

NUM_TRACES = 2_000
MAX_TURNED_SHARE = 0.05
CLASSES = ("satisfied", "new_goal", "clarify", "rephrase", "wrong_or_revert")


def run() -> list[Figure]:
    """All figures that move anything, the largest first; some ten seconds on one core."""
    cases = simulated_cases(NUM_TRACES, seed=0)
    by_figure: dict[str, list[Moved]] = {}
    for row in sensitivity(load_recipe(None), cases):
        by_figure.setdefault(row.figure, []).append(row)
    figures: list[Figure] = []
    ordered = sorted(by_figure.items(), key=lambda item: -max(row.mean_change for row in item[1]))
    for name, rows in ordered:
        change = max(row.mean_change for row in rows)
        turned = max(row.num_turned / max(1, row.num_known) for row in rows)
        if change > 0:
            figures += [
                Figure(metric=f"{name}, change of reward", unit="reward", ours=change),
                Figure(
                    metric=f"{name}, signs turned", unit="share", ours=turned,
                    target=MAX_TURNED_SHARE, ok=turned <= MAX_TURNED_SHARE,
                ),
            ]  # fmt: skip
    return figures


def simulated_cases(num_traces: int, *, seed: int) -> list[Case]:
    """Traces with what their simulated users did, the same for the same seed."""
    rng = random.Random(seed)
    return [
        (_trace(i, "chat" if i % 2 else "suggestion"), _chat(rng) if i % 2 else _suggestion(rng))
        for i in range(num_traces)
    ]


def _suggestion(rng: random.Random) -> list[Feedback]:
    steps: list[dict[str, Any]] = [{"type": "suggestion.shown", "visible_ms": 1_500.0}]
    if rng.random() >= 0.27:
        explicit = rng.random() < 0.3
        return _events([*steps, {"type": f"suggestion.{'rejected' if explicit else 'ignored'}"}])
    if rng.random() < 1 / 3:
        steps.append({"type": "suggestion.accepted_partially", "value": rng.uniform(0.2, 0.9)})
    else:
        steps.append({"type": "suggestion.accepted"})
    if rng.random() < 1 / 12:
        return _events([*steps, {"type": "edit.undone"}])
    return _events(steps + _measured(rng))


def _chat(rng: random.Random) -> list[Feedback]:
    steps: list[dict[str, Any]] = []
    if rng.random() < 0.6:
        steps += [{"type": "edit.applied", "added_chars": 200}, *_measured(rng)]
    if rng.random() < 0.3:
        steps.append({"type": "user.followed_up", "reason": rng.choice(CLASSES)})
    if rng.random() < 0.08:
        steps.append({"type": "response.regenerated"})
    if rng.random() < 0.02:
        steps.append({"type": "feedback.vote", "value": rng.choice((-1.0, 1.0))})
    return _events(steps)


def _measured(rng: random.Random) -> list[dict[str, Any]]:
    """Less and less is kept; one horizon in ten is not measured."""
    kept, steps = 1.0, []
    for horizon_s in (30.0, 300.0, 86_400.0):
        kept *= rng.betavariate(6, 1)
        if rng.random() < 0.9:
            steps.append({"type": "retention.measured", "horizon_s": horizon_s, "value": kept})
    return steps


def _events(steps: list[dict[str, Any]]) -> list[Feedback]:
    return [
        Feedback(
            event_id=f"e{seq}", trace_id="t", session_id="s", tenant="t", user_key="u",
            client_seq=seq, client_time=1_000.0 + seq, ingested_at=1_000.0 + seq, **step,
        )
        for seq, step in enumerate(steps, start=1)
    ]  # fmt: skip


def _trace(number: int, route: Any) -> Trace:
    return Trace(
        trace_id=f"t{number}", session_id="s", session_origin="given", tenant="t", user_key="u",
        route=route, served_at=1_000.0, model="m", tokenizer_digest="d", prompt_token_ids=(1,),
        completion_token_ids=(1, 2, 3), behavior_logprobs=(-1.0, -1.0, -1.0),
        policy_spans=(PolicySpan(policy_version=1, num_tokens=3),), token_bytes=(10, 10, 20),
        sampling=Sampling(temperature=1.0, max_tokens=3), finish_reason="stop",
        latency=Latency(queue_s=0.0, first_token_s=0.1, total_s=0.5),
    )  # fmt: skip
