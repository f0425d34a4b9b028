"""A small run of the loop with numbers that can be worked out by hand.

Version 1 (base): 10 decisions, 8 shown, 2 silent; 2 accepted, 6 rejected; one request failed.
Version 2: promoted by a delta. 10 decisions, 5 shown: 3 accepted, 2 accepted in part.
Version 3: held by the gate. Version 4: promoted, then rolled back to 2.
"""

from collections.abc import Iterator
from typing import Any

from tendril.records import (
    Check,
    Episode,
    EvalReport,
    Ledger,
    NodeStatus,
    PolicySpan,
    Record,
    StoredFile,
    Trace,
)
from tests.builders import (
    make_episode,
    make_feedback,
    make_manifest,
    make_release,
    make_segment,
    make_trace,
)

START = 1_000_000.0
REWARDS = {"accepted": 0.75, "accepted_partially": 0.25, "rejected": -0.25, "suppressed": 0.0}
BYTES = {"accepted": 8, "accepted_partially": 4, "rejected": 0, "suppressed": 0}
V1 = ["accepted"] * 2 + ["rejected"] * 6 + ["suppressed"] * 2
V2 = ["accepted"] * 3 + ["accepted_partially"] * 2 + ["suppressed"] * 5


def make_decision(name: str, version: int, outcome: str, at: float) -> tuple[Trace, Episode]:
    """A trace and its episode, closed 2 s later."""
    spans = (PolicySpan(policy_version=version, num_tokens=3),)
    trace = make_trace(
        trace_id=name, served_at=at, policy_spans=spans, suppressed=outcome == "suppressed"
    )
    segment = make_segment(
        trace_id=name, policy_spans=(PolicySpan(policy_version=version, num_tokens=2),)
    )
    episode = make_episode(
        episode_id=f"e-{name}",
        segments=(segment,),
        served_at=at,
        closed_at=at + 2,
        outcome=outcome,
        reward=REWARDS[outcome],
        accepted_bytes=BYTES[outcome],
        shown_bytes=0 if outcome == "suppressed" else 8,
        held_out=name.endswith("0"),
    )
    return trace, episode


def make_status(**overrides: Any) -> NodeStatus:
    fields: dict[str, Any] = {
        "node": "node-1",
        "at": START,
        "policy_version": 1,
        "weights_digest": "d",
        "state": "serving",
    }
    return NodeStatus(**(fields | overrides))


def make_ledger(**overrides: Any) -> Ledger:
    fields: dict[str, Any] = {
        "process": "signals",
        "at": START + 100,
        "read": {"traces": 21},
        "outcomes": {"traces": {"joined": 20, "failed": 1}},
    }
    return Ledger(**(fields | overrides))


def held_report(version: int) -> EvalReport:
    checks = (
        Check(name="kl", value=0.31, ci95=(0.2, 0.4), limit=0.1, num_samples=900, verdict="fail"),
        Check(name="reward", value=0.02, limit=-0.02, num_samples=900, verdict="pass"),
    )
    return EvalReport(policy_version=version, against_version=2, checks=checks)


def small_run() -> Iterator[Record]:
    """Every record of the run, duplicates included."""
    yield make_manifest(policy_version=1, parent=None, published_at=START - 10)
    yield make_release(policy_version=1, at=START - 5)
    yield make_status(at=START - 4)
    yield make_trace(trace_id="failed", served_at=START + 9, finish_reason="error")
    for i, (version, outcome) in enumerate([(1, o) for o in V1] + [(2, o) for o in V2]):
        at = START + i if version == 1 else START + 60 + i
        trace, episode = make_decision(f"t{i}", version, outcome, at)
        feedback = make_feedback(event_id=f"f{i}", trace_id=f"t{i}", ingested_at=at + 1)
        yield from (trace, trace, feedback, feedback, episode, episode)
    yield from releases()
    yield make_ledger()


def releases() -> Iterator[Record]:
    small = StoredFile(name="delta", key="objects/bb", blake3="bb", num_bytes=50)
    yield make_manifest(
        policy_version=2,
        parent=1,
        base_version=1,
        delta=small,
        newest_feedback_at=START + 11,
        published_at=START + 50,
    )
    yield make_release(policy_version=2, state="gate_passed", at=START + 55)
    yield make_release(policy_version=2, at=START + 56)
    ack = make_status(at=START + 58, policy_version=2, swap_pause_ms=12.0, full_bytes=1000)
    yield from (ack, ack)
    yield make_manifest(policy_version=3, parent=2, published_at=START + 70)
    yield make_release(
        policy_version=3, state="gate_held", at=START + 71, reason="kl", evidence=held_report(3)
    )
    yield make_manifest(policy_version=4, parent=2, published_at=START + 80)
    yield make_release(policy_version=4, at=START + 81)
    yield make_status(
        at=START + 83,
        policy_version=4,
        swap_pause_ms=20.0,
        fetched_bytes=100,
        full_bytes=1000,
        used_delta=True,
    )
    yield make_release(policy_version=4, state="rolled_back", target_version=2, at=START + 90)
    yield make_status(at=START + 91, policy_version=2, swap_pause_ms=16.0)
