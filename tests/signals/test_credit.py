"""Per-token credit: exact at the byte, and its mean is the reward."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.credit import kept_shares, token_credit


def test_a_span_that_ends_inside_a_token_keeps_its_share_of_bytes():
    assert kept_shares((2, 3, 5), (0, 6)) == [1.0, 1.0, 0.2]


def test_a_span_may_end_inside_a_character_of_several_bytes():
    token_bytes = (len("é"), len("é".encode()) * 2)  # 1 + 4 bytes: "é" split over two tokens
    assert kept_shares(token_bytes, (0, 2)) == [1.0, 0.25]


def test_tokens_without_bytes_follow_the_text_around_them():
    assert kept_shares((2, 0, 3, 0), (0, 3)) == [1.0, 1.0, pytest.approx(1 / 3), 0.0]
    assert kept_shares((2, 0, 3, 0), (0, 5)) == [1.0] * 4
    assert kept_shares((2, 0, 3, 0), None) == [0.0] * 4


def test_credit_by_hand():
    assert token_credit(0.25, [1.0, 0.0], 0.25) == (0.375, 0.125)


@given(
    reward=st.floats(-1, 1),
    spread=st.floats(0, 1),
    token_bytes=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    data=st.data(),
)
def test_mean_credit_is_the_reward(reward, spread, token_bytes, data):
    span = data.draw(
        st.none() | st.tuples(st.just(0), st.integers(min_value=0, max_value=sum(token_bytes)))
    )
    credit = token_credit(reward, kept_shares(token_bytes, span), spread)
    assert math.isclose(math.fsum(credit) / len(credit), reward, abs_tol=1e-12)
