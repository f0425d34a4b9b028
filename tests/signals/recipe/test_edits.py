"""The state of edits and hunks: each on its own, combined by what each offered."""

import itertools
import random

import pytest

from signals.judge import judge
from tests.builders import make_trace
from tests.signals.recipe.steps import (
    ACCEPTED,
    RECIPE,
    REDONE,
    REJECTED,
    SHOWN,
    UNDONE,
    judged,
    kept,
    make_events,
)

CHAT = make_trace(route="chat")


def _hunk(name, decision, num_chars, **fields):
    return {"type": f"hunk.{decision}", "hunk_id": name, "num_chars": num_chars} | fields


def test_hunks_count_by_their_characters():
    judgement = judged(_hunk("a", "accepted", 30), _hunk("b", "rejected", 10))
    # 30 * (1 - 0.25) and 10 * -0.25
    assert judgement.reward == pytest.approx((30 * 0.75 - 10 * 0.25) / 40)
    assert judgement.outcome == "accepted_partially"


def test_each_edit_has_its_own_undo_and_retention():
    first, second = {"edit_id": "a"}, {"edit_id": "b"}
    judgement = judged(
        {"type": ACCEPTED, "num_chars": 60, **first},
        {"type": ACCEPTED, "num_chars": 40, **second},
        {"type": UNDONE, **first},
        kept(30, 0.5, **second),
    )
    assert judgement.reward == pytest.approx(0.6 * -0.5 + 0.4 * (0.5 - 0.25))
    assert judgement.invalid_event_ids == ()


def test_an_undo_of_another_edit_is_invalid_and_changes_nothing():
    undone = {"type": UNDONE, "edit_id": "b"}
    judgement = judged({"type": ACCEPTED, "edit_id": "a"}, undone)
    assert (judgement.reward, judgement.invalid_event_ids) == (0.75, ("e2",))


def test_an_undo_without_a_name_takes_back_every_part():
    judgement = judged(_hunk("a", "accepted", 5), _hunk("b", "accepted", 5), UNDONE)
    assert (judgement.reward, judgement.outcome) == (-0.5, "undone")


def test_a_later_word_about_the_whole_takes_back_those_about_parts():
    assert judged(_hunk("a", "rejected", 5), ACCEPTED).reward == 0.75
    assert judged(_hunk("a", "accepted", 5), REJECTED).reward == -0.25


def test_a_part_declined_after_the_whole_was_accepted_counts_once():
    judgement = judged(ACCEPTED, _hunk("a", "rejected", 4, span=(6, 10)))
    assert judgement.reward == pytest.approx(0.6 * 0.75 + 0.4 * -0.25)
    assert judgement.accepted_bytes == 6


def test_accepted_spans_of_hunks_are_where_credit_goes():
    judgement = judged(_hunk("a", "accepted", None, span=(0, 2)),
                       _hunk("b", "rejected", None, span=(2, 10)))  # fmt: skip
    assert judgement.accepted_bytes == 2
    assert judgement.credit[0] > judgement.credit[1] == judgement.credit[2]


def test_bytes_that_the_user_changed_lose_their_credit():
    judgement = judged(ACCEPTED, {"type": "edit.applied", "span": (5, 10)})
    assert judgement.credit[0] == judgement.credit[1] > judgement.credit[2]
    assert judgement.accepted_bytes == 10


@pytest.mark.parametrize("places", ["edit.applied", "content.inserted"])
def test_a_chat_edit_that_is_declined_in_part_is_kept_in_part(places):
    assert judged(_hunk("a", "accepted", 30), _hunk("b", "rejected", 10),
                  trace=CHAT).components == {"retention": 0.5}  # fmt: skip
    placed = {"type": places, "edit_id": "e"}
    assert judged(placed, trace=CHAT).reward is None
    assert judged(placed, kept(30, 0.75, edit_id="e"), trace=CHAT).reward == pytest.approx(0.5)


def test_a_chat_edit_that_was_ignored_says_nothing_and_one_that_was_rejected_does():
    assert judged("suggestion.ignored", trace=CHAT).reward is None
    assert judged(REJECTED, trace=CHAT).reward == -1.0


def test_any_order_of_arrival_gives_the_same_judgement():
    events = make_events(
        SHOWN, _hunk("a", "accepted", 7), _hunk("b", "rejected", 3),
        {"type": UNDONE, "hunk_id": "a"}, {"type": REDONE, "hunk_id": "a"},
        kept(30, 0.8, hunk_id="a"),
    )  # fmt: skip
    trace = make_trace(trace_id="t1")
    orders = list(itertools.permutations(events))
    random.Random(0).shuffle(orders)
    judgements = [judge(RECIPE, trace, order, age_s=1e9) for order in orders[:200]]
    assert all(judgement == judgements[0] for judgement in judgements)
    assert judgements[0].reward == pytest.approx(0.7 * 0.55 - 0.3 * 0.25)
