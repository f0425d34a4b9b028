"""What the learner leaves out, each by its reason, and what the tensors of a step hold."""

import math
from typing import Any

import pytest
import torch

from kernels.scoring import Scorable
from learner.batches import build_batch, drop_reason
from tendril.records import Exploration, PolicySpan
from tests.builders import make_episode, make_segment
from tests.learner.tiny import SILENCE, eligibility

INF, NAN = math.inf, math.nan


def _spans(*versions: int) -> tuple[PolicySpan, ...]:
    return tuple(PolicySpan(policy_version=v, num_tokens=2 // len(versions)) for v in versions)


def test_a_sound_episode_is_trained_on() -> None:
    assert drop_reason(make_episode(), eligibility()) is None
    assert drop_reason(make_episode(reward=0.0), eligibility()) is None  # neutral, not unknown


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("no consent", {"train_consent": False}),
        ("held out", {"held_out": True}),
        ("untrainable: top_p below 1", {"untrainable": "top_p below 1"}),
        ("other tokenizer", {"tokenizer_digest": "another"}),
        ("unlabelled", {"reward": None}),
        ("nothing to train", {"weight": 0.0}),
        ("nothing to train", {"segments": ()}),
        ("nothing to train", {"segments": (make_segment(loss_mask=(False, False)),)}),
        ("malformed", {"reward": NAN}),
        ("malformed", {"reward": 1.5}),
        ("malformed", {"weight": -1.0}),
        ("malformed", {"weight": INF}),
    ],
)
def test_an_episode_is_dropped_by_its_reason(reason: str, fields: dict[str, Any]) -> None:
    assert drop_reason(make_episode(**fields), eligibility()) == reason


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_token_ids": ()},
        {"prompt_token_ids": (32,)},
        {"prompt_token_ids": (-1,)},
        {"prompt_token_ids": (1,) * 63},
        {"completion_token_ids": (4, SILENCE)},
        {"policy_spans": ()},
        {"temperature": 0.0},
        {"temperature": NAN},
        {"credit": (NAN, 0.0)},
        {"behavior_logprobs": (NAN, -0.1)},
        {"behavior_logprobs": (-INF, -0.1)},
        {"behavior_logprobs": (0.5, -0.1)},
        {"exploration": Exploration(share=1.0, forced=False, silence_logprob=-1.0)},
        {"exploration": Exploration(share=0.1, forced=False, silence_logprob=NAN)},
    ],
)
def test_a_segment_that_no_step_could_use_is_malformed(fields: dict[str, Any]) -> None:
    episode = make_episode(segments=(make_segment(), make_segment(**fields)))
    assert drop_reason(episode, eligibility()) == "malformed"


@pytest.mark.parametrize(("version", "reason"), [(4, None), (5, "policy lag")])
def test_lag_counts_from_the_oldest_weights(version: int, reason: str | None) -> None:
    episode = make_episode(segments=(make_segment(policy_spans=_spans(1, 4)),))
    assert drop_reason(episode, eligibility(policy_version=version)) == reason


def test_a_batch_packs_all_segments_in_order() -> None:
    forced = Exploration(share=0.1, forced=True, silence_logprob=math.log(0.5))
    episodes = [
        make_episode(
            weight=0.5,
            segments=(
                make_segment(policy_spans=_spans(3, 4), exploration=forced, temperature=0.5),
                make_segment(
                    prompt_token_ids=(9,), completion_token_ids=(SILENCE,), loss_mask=(True,),
                    behavior_logprobs=(-0.5,), credit=(0.0,), exploration=forced,
                    policy_spans=(PolicySpan(policy_version=4, num_tokens=1),),
                ),
            ),
        ),
        make_episode(segments=(make_segment(loss_mask=(False, True), credit=(0.0, -0.25)),)),
    ]  # fmt: skip
    batch = build_batch(episodes, SILENCE)
    assert batch.items == [
        Scorable((5, 6, 7), (10, 11), 0.5),
        Scorable((9,), (SILENCE,), 1.0),
        Scorable((5, 6, 7), (10, 11), 1.0),
    ]
    torch.testing.assert_close(
        batch.behavior_logprobs_T, torch.tensor([-0.1, -0.2, -0.5, -0.1, -0.2])
    )
    assert batch.credits_T.tolist() == [0.75, 0.75, 0.0, 0.0, -0.25]
    assert batch.loss_mask_T.tolist() == [True, True, True, False, True]
    assert batch.num_tokens_B.tolist() == [2, 1, 2]
    # shown: (1 - 0.5) / (0.9 * 0.5 + 0.1); silent: 1 / 0.9; without exploration: 1
    torch.testing.assert_close(batch.exploration_B, torch.tensor([0.5 / 0.55, 1 / 0.9, 1.0]))
    assert batch.observation_B.tolist() == [0.5, 0.5, 1.0]
    assert batch.versions_B == (None, 4, 1)
