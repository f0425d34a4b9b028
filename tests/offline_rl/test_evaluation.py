"""The paired evaluation: known answers, honest intervals."""

import random

import pytest

from offline_rl.autocomplete.corpus import house_files
from offline_rl.autocomplete.evaluation import (
    HeldOutPrompt,
    difference,
    held_out_prompts,
    judge,
    summary,
)
from offline_rl.autocomplete.typing_positions import Pause


def _prompts(num: int, files: int) -> list[HeldOutPrompt]:
    return [HeldOutPrompt(Pause("x = ", "foo(1)\n"), 2, f"file-{i % files}") for i in range(num)]


def test_a_policy_in_numbers():
    outcomes = judge(_prompts(2, 2), [["foo", ""], ["bar", "bar"]])
    assert summary(outcomes) == {
        "acceptance": pytest.approx(1 / 3),
        "shown_rate": 0.75,
        "reward_per_decision": pytest.approx((0.75 + 0.0 - 0.25 - 0.25) / 4),
        "accepted_bytes_per_decision": 0.75,
    }


def test_a_better_policy_has_an_interval_above_zero_and_an_equal_one_contains_it():
    prompts = _prompts(200, 20)
    rng = random.Random(1)

    def policy(share: float) -> list[list[str]]:
        return [["foo" if rng.random() < share else "bar"] for _ in prompts]

    base = judge(prompts, policy(0.4))
    better = difference(prompts, base, judge(prompts, policy(0.7)), seed=1)
    equal = difference(prompts, base, judge(prompts, policy(0.4)), seed=1)
    low, high = better["reward_ci95"]
    assert 0 < low < better["reward"] < high
    low, high = equal["reward_ci95"]
    assert low < 0 < high


def test_prompts_of_one_file_count_together():
    """All the gain lies in one file of twenty: an interval over prompts alone would not see it."""
    prompts = _prompts(200, 20)
    base = judge(prompts, [["bar"] for _ in prompts])
    lucky = judge(prompts, [["foo" if p.file == "file-0" else "bar"] for p in prompts])
    low, _ = difference(prompts, base, lucky, seed=1)["reward_ci95"]
    assert low == 0.0


def test_a_silent_policy_is_no_gain():
    prompts = _prompts(100, 10)
    base = judge(prompts, [["foo" if i % 2 else "bar"] for i in range(100)])
    silent = judge(prompts, [[""] for _ in prompts])
    assert summary(silent)["shown_rate"] == 0.0
    assert difference(prompts, base, silent, seed=1)["reward"] == pytest.approx(-0.25)


@pytest.mark.slow
def test_held_out_prompts_are_the_same_each_time_and_come_from_held_out_files():
    prompts = held_out_prompts(50, seed=3)
    assert prompts == held_out_prompts(50, seed=3)
    splits = {file.name: file.split for file in house_files()}
    assert {splits[prompt.file] for prompt in prompts} == {"held_out"}
