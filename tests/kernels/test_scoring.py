"""The forward pass of learner and gate, against transformers' own."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kernels.scoring import (
    MAX_BATCH_TOKENS,
    Scorable,
    batches,
    compare,
    completion_logprobs,
    full_logprobs,
    length_buckets,
    load_policy,
    silence_token_id,
)
from tests.learner.tiny import SILENCE, VOCAB_SIZE, tiny_model, write_tiny_checkpoint

ITEMS = [
    Scorable((1, 2, 3), (4, 5), 1.0),
    Scorable((9,), (SILENCE,), 0.7),
    Scorable(tuple(range(1, 20)), (7, 7, 7, 8), 1.3),
    Scorable((3, 1), (2,), 1.0),
]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model()


def _plain(model: PreTrainedModel, item: Scorable, silence: int | None) -> Tensor:
    """[T, V] by a whole forward pass of one row."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([item.prompt + item.completion])).logits[0]
    logits = logits[len(item.prompt) - 1 : -1] / item.temperature
    if silence is not None:
        logits[1:, silence] = -torch.inf
    return torch.log_softmax(logits, -1)


@pytest.mark.parametrize("silence", [None, SILENCE])
def test_logprobs_are_those_of_a_plain_forward_pass(
    model: PreTrainedModel, silence: int | None
) -> None:
    expected = torch.cat([_plain(model, item, silence) for item in ITEMS])
    got = full_logprobs(model, ITEMS, silence).detach()
    assert got.shape == (8, VOCAB_SIZE)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    tokens = torch.tensor([t for item in ITEMS for t in item.completion])
    torch.testing.assert_close(
        completion_logprobs(model, ITEMS, silence).detach(),
        expected.gather(1, tokens[:, None])[:, 0],
        atol=1e-5,
        rtol=0,
    )


def test_an_item_scores_alike_alone_and_in_any_company(model: PreTrainedModel) -> None:
    alone = torch.cat([full_logprobs(model, [item], SILENCE) for item in ITEMS]).detach()
    turned = full_logprobs(model, ITEMS[::-1], SILENCE).detach()
    back = torch.cat(turned.split([len(i.completion) for i in ITEMS[::-1]])[::-1])
    torch.testing.assert_close(back, alone, atol=1e-5, rtol=0)


def test_silence_is_possible_as_first_token_only(model: PreTrainedModel) -> None:
    probability = full_logprobs(model, ITEMS[:1], SILENCE).exp()
    assert probability[0, SILENCE] > 0
    assert probability[1, SILENCE] == 0
    torch.testing.assert_close(probability.sum(-1), torch.ones(2))  # renormalised


def test_temperature_divides_the_logits(model: PreTrainedModel) -> None:
    one, half = (full_logprobs(model, [Scorable((1, 2), (3,), t)], None)[0] for t in (1.0, 0.5))
    torch.testing.assert_close(half, torch.log_softmax(2 * one, -1))


def test_only_completion_positions_get_logits(model: PreTrainedModel) -> None:
    head, rows = model.get_output_embeddings(), []
    hook = head.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[0]))
    full_logprobs(model, ITEMS, SILENCE)
    hook.remove()
    assert rows == [sum(len(item.completion) for item in ITEMS)]


def test_gradients_reach_every_parameter(model: PreTrainedModel) -> None:
    completion_logprobs(model, ITEMS, SILENCE).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    model.zero_grad()


def test_an_empty_prompt_is_refused(model: PreTrainedModel) -> None:
    with pytest.raises(ValueError, match="at least 1 prompt token"):
        full_logprobs(model, [Scorable((), (1,), 1.0)], None)


def test_equal_policies_have_no_divergence(model: PreTrainedModel) -> None:
    for item, comparison in zip(
        ITEMS, compare(model, model, ITEMS, silence_token_id=SILENCE), strict=True
    ):
        assert comparison.kl_T.tolist() == [0.0] * len(item.completion)
        assert torch.equal(comparison.candidate_logprobs_T, comparison.live_logprobs_T)
        assert comparison.candidate_silence == comparison.live_silence


def test_divergence_is_the_sum_over_the_whole_vocabulary(model: PreTrainedModel) -> None:
    other = tiny_model(seed=1)
    comparisons = compare(other, model, ITEMS, silence_token_id=SILENCE)
    for item, comparison in zip(ITEMS, comparisons, strict=True):
        p, q = _plain(other, item, SILENCE), _plain(model, item, SILENCE)
        finite = p > -torch.inf
        expected = torch.where(finite, p.exp() * (p - q), 0.0).sum(-1)
        torch.testing.assert_close(comparison.kl_T, expected, atol=1e-5, rtol=0)
        assert comparison.kl_T.min() > 0
        assert comparison.candidate_silence == pytest.approx(float(p[0, SILENCE].exp()), abs=1e-6)
        assert comparison.live_silence == pytest.approx(float(q[0, SILENCE].exp()), abs=1e-6)
        picked = p.gather(1, torch.tensor(item.completion)[:, None])[:, 0]
        torch.testing.assert_close(comparison.candidate_logprobs_T, picked, atol=1e-5, rtol=0)


def test_without_a_silence_token_its_probability_is_zero(model: PreTrainedModel) -> None:
    [comparison] = compare(model, model, ITEMS[:1], silence_token_id=None)
    assert (comparison.candidate_silence, comparison.live_silence) == (0.0, 0.0)


def test_batches_keep_order_and_stay_below_the_limit_of_padded_tokens() -> None:
    lengths = [10, 4000, 4000, 100, 9000, 1, 1, 8000, 5000]
    items = [Scorable((1,) * (n - 1), (2,), 1.0) for n in lengths]
    made = [list(batch) for batch in batches(items)]
    assert [item for batch in made for item in batch] == items
    for batch in made:
        width = max(len(item.prompt) + 1 for item in batch)
        assert len(batch) == 1 or width * len(batch) <= MAX_BATCH_TOKENS
    assert [len(batch) for batch in made] == [2, 2, 1, 2, 1, 1]
    assert list(batches([])) == []


def test_a_policy_loads_in_float32_and_quietly(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = load_policy(write_tiny_checkpoint(tmp_path))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    assert "Loading weights" not in capfd.readouterr().err


def test_the_silence_token_is_found_by_name(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    assert silence_token_id(folder, "<|silence|>") == SILENCE
    assert silence_token_id(folder, "<|none|>") is None
    assert silence_token_id(folder, None) is None


def test_rows_of_a_bucket_are_padded_by_half_at_most() -> None:
    lengths = [3, 150, 40, 41, 60, 8, 100, 20]
    buckets = length_buckets(lengths)
    assert sorted(i for bucket in buckets for i in bucket) == list(range(8))
    assert [[lengths[i] for i in bucket] for bucket in buckets] == [
        [3, 8, 20], [40, 41, 60], [100, 150],
    ]  # fmt: skip
    assert length_buckets([]) == []
