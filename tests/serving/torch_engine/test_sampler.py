"""Draws against hand-worked numbers and the filters of transformers."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from serving.torch_engine.sampler import Row, allowed, at_quantile, draw, keep_likely

P_V = torch.tensor([0.1, 0.4, 0.05, 0.2, 0.25])


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (Row(1.0, top_k=2), {1, 4}),
        (Row(1.0, top_k=9), {0, 1, 2, 3, 4}),
        (Row(1.0, min_p=0.5), {1, 3, 4}),  # at least 0.5 * 0.4
        (Row(1.0, min_p=1.0), {1}),
        (Row(1.0, top_p=0.65), {1, 4}),
        (Row(1.0, top_p=0.66), {1, 3, 4}),
        (Row(1.0, top_k=2, top_p=0.5), {1}),  # of the two left, 0.4 / 0.65 is enough
        (Row(1.0, min_p=0.3, top_k=3, top_p=0.7), {1, 4}),
    ],
)
def test_filters_keep_the_tokens_worked_out_by_hand(row: Row, kept: set[int]) -> None:
    left_V = keep_likely(P_V.log(), row)
    assert {i for i, logprob in enumerate(left_V.tolist()) if logprob > -math.inf} == kept
    assert torch.equal(left_V[sorted(kept)], P_V.log()[sorted(kept)])


@given(
    seed=st.integers(0, 999),
    top_k=st.integers(1, 40),
    min_p=st.floats(0.01, 1.0),
    top_p=st.floats(0.01, 0.99),
)
def test_each_filter_keeps_what_transformers_keeps(
    seed: int, top_k: int, min_p: float, top_p: float
) -> None:
    logprobs_V = torch.randn(40, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
    ids: Any = torch.zeros(1, 1, dtype=torch.long)
    logprobs_BV: Any = logprobs_V[None]
    for row, warper in (
        (Row(1.0, top_k=top_k), TopKLogitsWarper(top_k)),
        (Row(1.0, min_p=min_p), MinPLogitsWarper(min_p)),
        (Row(1.0, top_p=top_p), TopPLogitsWarper(top_p)),
    ):
        expected_V = warper(ids, logprobs_BV)[0].isfinite()
        assert torch.equal(keep_likely(logprobs_V, row).isfinite(), expected_V)


def test_a_quantile_is_the_token_whose_share_of_the_line_it_falls_in() -> None:
    quantiles_B = torch.tensor([0.0, 0.09, 0.11, 0.49, 0.51, 0.54, 0.56, 0.99, 1.0]).double()
    found_B = at_quantile(P_V.expand(len(quantiles_B), -1), quantiles_B)
    assert found_B.tolist() == [0, 0, 1, 1, 2, 2, 3, 4, 4]


@given(seed=st.integers(0, 999), num_tokens=st.integers(1, 300), quantile=st.floats(0, 1))
def test_a_quantile_never_finds_a_token_without_mass(
    seed: int, num_tokens: int, quantile: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    mass_V = torch.rand(num_tokens, generator=generator)
    mass_V[torch.rand(num_tokens, generator=generator) < 0.7] = 0.0
    mass_V[seed % num_tokens] = 1e-6
    [token] = at_quantile(mass_V[None], torch.tensor([quantile]).double()).tolist()
    exact_V = mass_V.double().cumsum(0)
    assert mass_V[token] > 0
    assert exact_V[token] >= quantile * exact_V[-1] - 1e-4
    assert exact_V[token] - mass_V[token] <= quantile * exact_V[-1] + 1e-4


def test_shares_of_a_draw_over_many_blocks_are_the_probabilities() -> None:
    torch.manual_seed(0)
    logits_V = torch.randn(200)
    drawn = draw(logits_V.expand(20_000, -1), [Row(0.5)] * 20_000, None)
    probability_V = (logits_V / 0.5).softmax(-1)
    share_V = drawn.tokens_B.bincount(minlength=200) / 20_000
    deviation_V = (probability_V * (1 - probability_V) / 20_000).sqrt()
    assert ((share_V - probability_V).abs() < 5 * deviation_V + 1e-4).all()
    expected_B = (logits_V / 0.5).log_softmax(-1)[drawn.tokens_B]
    assert torch.allclose(drawn.logprobs_B, expected_B, atol=1e-6)


def test_top_logprobs_are_the_policys_best_first_without_silence_after_the_first_token() -> None:
    logits_BV = P_V.log().expand(2, -1)
    rows = [Row(1.0, num_top_logprobs=2), Row(1.0, is_first=False, num_top_logprobs=9, top_k=1)]
    first, later = draw(logits_BV, rows, silence_token_id=1).top_logprobs
    assert [token for token, _ in first] == [1, 4]
    assert first[0][1] == pytest.approx(math.log(0.4))
    assert [token for token, _ in later] == [4, 3, 0, 2]
    assert [logprob for _, logprob in later] == pytest.approx(
        [math.log(p / 0.6) for p in (0.25, 0.2, 0.1, 0.05)]
    )


def test_forbidding_silence_holds_where_the_policy_wants_nothing_else() -> None:
    logits_V = torch.zeros(5)
    logits_V[1] = 1_000.0
    drawn = draw(logits_V.expand(50, -1), [Row(1.0, forbid_silence=True)] * 50, 1)
    assert 1 not in drawn.tokens_B.tolist()
    assert len(set(drawn.tokens_B.tolist())) > 1


def test_rows_without_limits_are_not_copied() -> None:
    logprobs_BV = P_V.log()[None]
    assert allowed(logprobs_BV, [Row(1.0)], 1) is logprobs_BV
