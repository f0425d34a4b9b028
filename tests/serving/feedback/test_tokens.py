"""Feedback tokens: of one request, all its choices, and nothing else."""

import time

import pytest

from serving.feedback.tokens import FeedbackTokens, TokenExpired, TokenInvalid, TraceScope

SCOPE = TraceScope("t-1", "s1", "acme", "u1")


@pytest.mark.parametrize("trace_id", ["t-1", "t-1.1", "t-1.127", None])
def test_a_token_covers_the_choices_of_its_request(trace_id: str | None) -> None:
    tokens = FeedbackTokens(b"secret" * 6, ttl_s=60)
    assert tokens.read(tokens.issue(SCOPE), trace_id) == SCOPE


@pytest.mark.parametrize(
    "trace_id",
    ["", "t-", "t-2", "t-12", "t-1.", "t-1.0", "t-1.01", "t-1.-1", "t-1.1.1", "t-1.1\n", "t-1.²",
     "xt-1", "t-1.1234567", "T-1"],
)  # fmt: skip
def test_it_covers_no_other_trace(trace_id: str) -> None:
    tokens = FeedbackTokens(b"secret" * 6, ttl_s=60)
    with pytest.raises(TokenInvalid, match="got one for another trace"):
        tokens.read(tokens.issue(SCOPE), trace_id)


def test_a_token_of_another_secret_is_none_of_ours() -> None:
    token = FeedbackTokens(b"other" * 7, ttl_s=60).issue(SCOPE)
    with pytest.raises(TokenInvalid, match="did not issue"):
        FeedbackTokens(b"secret" * 6, ttl_s=60).read(token, "t-1")


@pytest.mark.parametrize(
    ("age_s", "is_taken"), [(59, True), (62, False), (-30, True), (-400, False)]
)
def test_its_age_is_counted_with_room_for_another_replicas_clock(
    monkeypatch: pytest.MonkeyPatch, age_s: float, is_taken: bool
) -> None:
    tokens, now = FeedbackTokens(b"secret" * 6, ttl_s=60), time.time()
    token = tokens.issue(SCOPE)
    monkeypatch.setattr("time.time", lambda: now + age_s)
    if is_taken:
        assert tokens.read(token, "t-1") == SCOPE
    else:
        with pytest.raises(TokenExpired, match="signed at"):
            tokens.read(token, "t-1")
