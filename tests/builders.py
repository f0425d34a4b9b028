"""Builders for records with sensible values; override what a test is about."""

from typing import Any

from tendril.ids import new_id
from tendril.records import (
    Episode,
    Feedback,
    Latency,
    PolicyManifest,
    PolicySpan,
    Release,
    Sampling,
    Segment,
    StoredFile,
    Trace,
)


def make_trace(**overrides: Any) -> Trace:
    """A shown three-token suggestion by policy version 1."""
    fields: dict[str, Any] = {
        "trace_id": new_id(),
        "session_id": "s1",
        "session_origin": "given",
        "tenant": "acme",
        "user_key": "u1",
        "route": "suggestion",
        "served_at": 1_000.0,
        "model": "tendril",
        "tokenizer_digest": "tok",
        "prompt_token_ids": (5, 6, 7),
        "completion_token_ids": (10, 11, 12),
        "behavior_logprobs": (-0.1, -0.2, -0.3),
        "policy_spans": (PolicySpan(policy_version=1, num_tokens=3),),
        "token_bytes": (2, 3, 5),
        "sampling": Sampling(temperature=1.0, max_tokens=3),
        "finish_reason": "length",
        "latency": Latency(queue_s=0.0, first_token_s=0.01, total_s=0.02),
    }
    return Trace(**(fields | overrides))


def make_feedback(**overrides: Any) -> Feedback:
    """An acceptance of the whole suggestion."""
    fields: dict[str, Any] = {
        "event_id": new_id(),
        "trace_id": "t1",
        "session_id": "s1",
        "tenant": "acme",
        "user_key": "u1",
        "type": "suggestion.accepted",
        "client_seq": 1,
        "client_time": 1_001.0,
        "ingested_at": 1_001.1,
    }
    return Feedback(**(fields | overrides))


def make_segment(**overrides: Any) -> Segment:
    fields: dict[str, Any] = {
        "trace_id": "t1",
        "prompt_token_ids": (5, 6, 7),
        "completion_token_ids": (10, 11),
        "loss_mask": (True, True),
        "behavior_logprobs": (-0.1, -0.2),
        "policy_spans": (PolicySpan(policy_version=1, num_tokens=2),),
        "credit": (0.75, 0.75),
        "temperature": 1.0,
    }
    return Segment(**(fields | overrides))


def make_episode(**overrides: Any) -> Episode:
    """An accepted two-token suggestion, reward 0.75."""
    fields: dict[str, Any] = {
        "episode_id": new_id(),
        "session_id": "s1",
        "tenant": "acme",
        "user_key": "u1",
        "lane": "online",
        "route": "suggestion",
        "closed_at": 1_010.0,
        "served_at": 1_000.0,
        "feedback_at": 1_001.1,
        "segments": (make_segment(),),
        "reward": 0.75,
        "components": {"completion": 0.75},
        "outcome": "accepted",
        "accepted_bytes": 5,
        "shown_bytes": 5,
        "tokenizer_digest": "tok",
        "recipe_digest": "recipe",
    }
    return Episode(**(fields | overrides))


def make_manifest(**overrides: Any) -> PolicyManifest:
    fields: dict[str, Any] = {
        "policy_version": 2,
        "parent": 1,
        "snapshot": (
            StoredFile(name="model.safetensors", key="objects/aa", blake3="aa", num_bytes=1000),
        ),
        "weights_digest": "digest-2",
        "tokenizer_digest": "tok",
        "published_at": 1_060.0,
    }
    return PolicyManifest(**(fields | overrides))


def make_release(**overrides: Any) -> Release:
    fields: dict[str, Any] = {
        "policy_version": 2,
        "state": "promoted",
        "actor": "gate",
        "reason": "all checks passed",
        "at": 1_070.0,
    }
    return Release(**(fields | overrides))
