"""Per-token credit: exact at the byte, and its mean is the reward."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.credit import kept_shares, token_credit
from signals.spans import merged, num_bytes, without


def test_a_span_that_ends_inside_a_token_keeps_its_share_of_bytes():
    assert kept_shares((2, 3, 5), [(0, 6)]) == [1.0, 1.0, 0.2]


def test_a_span_may_end_inside_a_character_of_several_bytes():
    token_bytes = (len("é"), len("é".encode()) * 2)  # 1 + 4 bytes: "é" split over two tokens
    assert kept_shares(token_bytes, [(0, 2)]) == [1.0, 0.25]


def test_tokens_without_bytes_follow_the_text_around_them():
    assert kept_shares((2, 0, 3, 0), [(0, 3)]) == [1.0, 1.0, pytest.approx(1 / 3), 0.0]
    assert kept_shares((2, 0, 3, 0), [(0, 5)]) == [1.0] * 4
    assert kept_shares((2, 0, 3, 0), []) == [0.0] * 4


def test_credit_by_hand():
    assert token_credit(0.25, [1.0, 0.0], 0.25) == (0.375, 0.125)


@given(
    reward=st.floats(-1, 1),
    spread=st.floats(0, 1),
    blame=st.floats(0, 1),
    token_bytes=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    data=st.data(),
)
def test_mean_credit_over_trainable_tokens_is_the_reward(reward, spread, blame, token_bytes, data):
    num_tokens, end = len(token_bytes), sum(token_bytes)
    byte = st.integers(0, end)
    spans = merged(data.draw(st.lists(st.tuples(byte, byte), max_size=4)))
    blamed_T, trainable_T = (
        data.draw(st.lists(st.booleans(), min_size=num_tokens, max_size=num_tokens))
        for _ in range(2)
    )
    kept_T = kept_shares(token_bytes, spans)
    credit = token_credit(
        reward, kept_T, spread, blamed_T=blamed_T, blame=blame, trainable_T=trainable_T
    )
    trained = [c for c, trains in zip(credit, trainable_T, strict=True) if trains]
    assert all(c == 0 for c, trains in zip(credit, trainable_T, strict=True) if not trains)
    if trained:
        assert math.isclose(math.fsum(trained) / len(trained), reward, abs_tol=1e-12)
    kept_bytes = sum(kept * n for kept, n in zip(kept_T, token_bytes, strict=True))
    assert kept_bytes == pytest.approx(num_bytes(spans))


@given(data=st.data())
def test_spans_are_sets_of_bytes(data):
    byte = st.integers(0, 20)
    one, other = (data.draw(st.lists(st.tuples(byte, byte), max_size=5)) for _ in range(2))

    def places(spans):
        return {i for start, end in spans for i in range(start, end)}

    assert places(merged(one)) == places(one)
    assert places(without(merged(one), other)) == places(one) - places(other)
    assert num_bytes(merged(one)) == len(places(one))
