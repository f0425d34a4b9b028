"""What simulated people make of suggestions."""

import json
import random
from dataclasses import replace

import pytest

from offline_rl.autocomplete import users
from offline_rl.autocomplete.judgement import Match, match, recipe_reward
from offline_rl.autocomplete.personas import PERSONAS, Reaction, react
from serving.feedback.body import event_of as feedback_event

STRICT = replace(PERSONAS[0], tolerance=1.01, partial_share=1.0, second_thoughts=0.0)


def _types(reactions: list[Reaction]) -> list[str]:
    return [reaction.type for reaction in reactions]


@pytest.mark.parametrize(
    ("suggestion", "following", "matching_bytes"),
    [
        ("self.name", "self.name = name\n", 9),
        ("self.na", "self.name = name\n", 7),  # right so far counts as right
        ("self.other", "self.name = name\n", 5),
        ("('x')", '("x")', 0),
        ("\n    ", "\n\nclass", 0),
        ("\n    return", "\n    pass", 0),  # nobody accepts white space alone
        ('"é"', '"é", 1', 4),
    ],
)
def test_a_match_counts_whole_words_from_the_start(
    suggestion: str, following: str, matching_bytes: int
):
    assert match(suggestion, following).matching_bytes == matching_bytes


def test_the_reference_reward_is_the_default_recipe():
    assert recipe_reward(None) == 0.0
    assert recipe_reward(match("ab", "abc")) == 0.75
    assert recipe_reward(match("zz", "abc")) == -0.25
    assert recipe_reward(Match(10, 5, 0.8)) == pytest.approx(0.25)


def test_a_right_suggestion_is_accepted_and_kept():
    reactions = react(STRICT, "foo", "foo(1)", random.Random(1), 5.0)
    assert _types(reactions) == ["suggestion.shown", "suggestion.accepted", "retention.measured"]
    assert reactions[-1].value == 1.0
    assert reactions[-1].delay_s == pytest.approx(reactions[1].delay_s + 5.0)


def test_a_half_right_one_is_accepted_up_to_the_last_right_word():
    reactions = react(STRICT, "self.other", "self.name", random.Random(1), 5.0)
    assert _types(reactions)[1] == "suggestion.accepted_partially"
    assert reactions[1].span == (0, 5)
    assert reactions[1].value == 0.5


def test_a_wrong_one_is_dismissed_or_typed_over():
    decisions = {
        react(STRICT, "zzz", "abc", random.Random(seed), 5.0)[-1].type for seed in range(50)
    }
    assert decisions == {"suggestion.rejected", "suggestion.ignored"}


def test_a_tolerant_person_accepts_what_is_close_and_corrects_it():
    tolerant = replace(STRICT, tolerance=0.5)
    reactions = react(tolerant, "('name')", '("name")', random.Random(1), 5.0)
    assert _types(reactions)[1:] == ["suggestion.accepted", "edit.applied", "retention.measured"]
    assert reactions[-1].value == pytest.approx(0.75)  # 6 of 8 characters were right
    assert (reactions[2].added_chars, reactions[2].removed_chars) == (2, 2)


def test_second_thoughts_undo_before_retention_is_measured():
    hasty = replace(STRICT, second_thoughts=1.0)
    reactions = react(hasty, "foo", "foo", random.Random(1), 5.0)
    assert _types(reactions)[-1] == "edit.undone"
    assert reactions[-1].delay_s < reactions[1].delay_s + 5.0


def test_the_service_takes_every_event_that_a_person_reports():
    tolerant = replace(STRICT, tolerance=0.5, second_thoughts=0.3)
    texts = [
        ("foo", "foo(1)"), ("self.other", "self.name"), ("zzz", "abc"), ("('name')", '("name"'),
        ("abcdef", "abcd"),
    ]  # fmt: skip
    seen = set()
    for seed in range(20):
        for persona in (*PERSONAS, STRICT, tolerant):
            for suggestion, following in texts:
                for reaction in react(persona, suggestion, following, random.Random(seed), 5.0):
                    raw = json.loads(json.dumps(users.event_of(reaction, "t", "x", 1, 5.0)))
                    seen.add(feedback_event(raw).type)
    assert seen == {
        "suggestion.shown", "suggestion.accepted", "suggestion.accepted_partially",
        "suggestion.rejected", "suggestion.ignored", "edit.applied", "edit.undone",
        "retention.measured",
    }  # fmt: skip
