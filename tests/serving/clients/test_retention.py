"""Retention: what is measured, and when."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tendril_client import Outbox, RetentionMeter, Suggestion, find_place, measure_retention
from tests.serving.clients.fake_server import wait_for

ACCEPTED = "total = sum(prices)"  # 19 characters, 6 words and signs, 16 4-grams


@pytest.mark.parametrize(
    ("place", "arc_chars", "no_revert", "token_distance", "share"),
    [
        (ACCEPTED, 19, 1, 0, 1),
        ("", 0, 0, 1, 0),
        # Another name in the middle: `s)`, which both share, is too short to count.
        ("total = sum(costs)", 12, 18 / 19, 1 / 6, 12 / 19 * 18 / 19),
        # More inside than before: nothing was lost.
        ("total = sum(all prices)", 19, 1, 1 / 7, 1),
        # The first half deleted: two of six tokens.
        ("sum(prices)", 11, 11 / 19, 2 / 6, (11 / 19) ** 2),
        # Much written around the same letters, and the first word another: a rewrite.
        ("my_total = sum(prices) / len(prices) if prices else 0", 19, 1, 10 / 15, 0.5),
        ("something else", 0, 14 / 19, 1, 0),
    ],
)
def test_the_measures_are_those_worked_out_by_hand(
    place, arc_chars, no_revert, token_distance, share
):
    measured = measure_retention(ACCEPTED, place)
    assert measured.arc_chars == arc_chars
    assert measured.total_chars == 19
    assert measured.no_revert == pytest.approx(no_revert)
    assert measured.token_distance == pytest.approx(token_distance)
    assert measured.share == pytest.approx(share)


def test_the_measures_are_those_of_the_cases_that_the_typescript_client_runs_too():
    cases = json.loads((Path(__file__).parent / "retention_cases.json").read_text())
    for case in cases:
        measured = measure_retention(case["accepted"], case["place"])
        found = measured._asdict() | {"share": measured.share}
        assert found == pytest.approx({name: case[name] for name in found}), case


def test_four_grams_are_counted_as_often_as_they_occur():
    assert measure_retention("abcdabcd", "abcd").four_gram == 1 / 5
    assert measure_retention("abcdabcd", "abcdabc").four_gram == 4 / 5
    assert measure_retention("ab", "ab").four_gram == 1.0


@given(st.text(min_size=1, max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_an_untouched_text_is_found_and_kept_whatever_stands_around_it(accepted, before, after):
    place = find_place(accepted, before + accepted + after)
    assert place == accepted
    assert measure_retention(accepted, place).share == 1.0


@given(st.text(min_size=1, max_size=40), st.text(max_size=60))
def test_every_measure_is_a_share(accepted, place):
    measured = measure_retention(accepted, place)
    shares = (measured.four_gram, measured.no_revert, measured.token_distance, measured.share)
    assert all(0 <= number <= 1 for number in shares)
    assert 0 <= measured.arc_chars <= measured.total_chars


def test_a_place_is_found_between_its_first_and_last_match():
    around = "def f(costs):\n    total = max(prices)\n"
    assert find_place(ACCEPTED, around) == "total = max(prices)"
    assert find_place(ACCEPTED, "nothing") == ""


class Now:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def make_accepted(fake, outbox) -> Suggestion:
    suggestion = Suggestion(
        trace_id="t1", policy_version=1, session_id="s1", endpoint=f"{fake.url}/v1/feedback",
        feedback_token=None, outbox=outbox,
    )  # fmt: skip
    suggestion.shown()
    suggestion.accepted()
    return suggestion


def measured(fake, outbox):
    """(horizon, value or reason) of the reports so far."""
    assert outbox.flush()
    retained = [event for event in fake.events if event["type"] == "retention.measured"]
    return [(event["horizon_s"], event.get("value", event.get("reason"))) for event in retained]


def test_retention_is_reported_at_30_s_and_5_min(fake):
    now, place = Now(), [ACCEPTED]
    with Outbox() as outbox:
        meter = RetentionMeter(now)
        meter.watch(make_accepted(fake, outbox), ACCEPTED, lambda: place[0])
        now.s = 129.9
        assert meter.measure_due() == 0
        now.s = 130.0
        assert meter.measure_due() == 1
        assert measured(fake, outbox) == [(30.0, 1.0)]
        place[0] = ""
        now.s = 400.0
        assert (meter.next_due_s, meter.measure_due(), meter.next_due_s) == (400.0, 1, None)
        assert measured(fake, outbox) == [(30.0, 1.0), (300.0, 0.0)]


def test_what_cannot_be_seen_in_time_is_reported_as_such(fake):
    """A document that was closed, a laptop that slept past the moment, a text to forget."""
    now = Now()
    with Outbox() as outbox:
        meter = RetentionMeter(now)
        meter.watch(make_accepted(fake, outbox), ACCEPTED, lambda: None)
        now.s = 100 + 61.0
        meter.measure_due()
        meter.watch(forgotten := make_accepted(fake, outbox), ACCEPTED, lambda: ACCEPTED)
        meter.forget(forgotten)
        now.s = 100 + 300.0
        meter.measure_due()
        assert measured(fake, outbox) == [(30.0, "too_late"), (300.0, "document_closed")]


def test_a_thread_measures_by_itself(fake):
    offset_s = [0.0]
    with Outbox() as outbox:
        meter = RetentionMeter(lambda: time.monotonic() + offset_s[0])
        meter.start()
        offset_s[0] = -29.9  # the first appointment is made 29.9 s ago
        meter.watch(make_accepted(fake, outbox), ACCEPTED, lambda: ACCEPTED)
        offset_s[0] = 0.2
        meter.watch(make_accepted(fake, outbox), ACCEPTED, lambda: ACCEPTED)  # wakes the thread
        wait_for(lambda: "retention.measured" in fake.types)
        meter.close()
        assert measured(fake, outbox) == [(30.0, 1.0)]
