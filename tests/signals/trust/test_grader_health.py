"""A grader's outage: when it begins, which rows it covers, when it is over."""

import math

from signals.trust.grader_health import RECOVERY_SCORES, GraderHealth, Outage, Score


def _run(scores: list[Score]) -> tuple[GraderHealth, list[Outage]]:
    health = GraderHealth("tests@1")
    said = [health.take(score) for score in scores]
    return health, [outage for outage in said if outage is not None]


def _good(start: int, num: int) -> list[Score]:
    return [Score(float(at), (at * 37 % 101) / 101) for at in range(start, start + num)]


def _failed(start: int, num: int) -> list[Score]:
    return [Score(float(at), None if at % 2 else math.nan) for at in range(start, start + num)]


def test_three_failures_running_are_an_outage_since_the_last_good_score():
    _, said = _run([*_good(0, 10), *_failed(10, 3)])
    [outage] = said
    assert (outage.since, outage.until) == (9.0, None)
    assert outage.finding.since > 9.0  # the score known good is not in doubt
    assert outage.finding.until == math.inf


def test_two_failures_are_none():
    assert _run([*_good(0, 100), *_failed(100, 2), *_good(102, 50)])[1] == []


def test_more_than_two_percent_of_five_minutes_are_one():
    scores = _good(0, 140)
    for at in (20, 60, 100):
        scores[at] = Score(float(at), None)
    [outage] = _run(scores)[1][:1]
    assert outage.why == "too many failures in five minutes"
    assert outage.since < 20.0


def test_two_hundred_equal_scores_are_in_doubt_from_the_first():
    _, said = _run([*_good(0, 50), *(Score(50.0 + n, 0.5) for n in range(200))])
    [outage] = said
    assert (outage.why, outage.since) == ("scores all the same", 49.0)


def test_a_wrong_canary_puts_all_since_the_last_good_score_in_doubt():
    _, said = _run([*_good(0, 10), Score(10.0, 0.2, expected=1.0)])
    [outage] = said
    assert outage.since == 9.0
    assert outage.limit < outage.figure


def test_it_ends_after_enough_good_scores_and_says_until_when():
    _, said = _run([*_good(0, 10), *_failed(10, 3), *_good(1_000, RECOVERY_SCORES)])
    begins, ends = said
    assert begins.until is None
    assert (ends.since, ends.until) == (begins.since, 1_000.0 + RECOVERY_SCORES - 1)


def test_after_a_wrong_canary_it_takes_a_right_one():
    wrong = Score(10.0, 0.2, expected=1.0)
    well = _good(20, 3 * RECOVERY_SCORES)
    assert len(_run([*_good(0, 10), wrong, *well])[1]) == 1
    right = Score(5_000.0, 0.99, expected=1.0)
    assert _run([*_good(0, 10), wrong, *well, right])[1][-1].until == 5_000.0


def test_a_replay_builds_the_same():
    scores = [*_good(0, 30), *_failed(30, 5), *_good(700, 40), *_failed(900, 3)]
    assert _run(scores)[1] == _run(scores)[1]
    assert len(_run(scores)[1]) == 3
