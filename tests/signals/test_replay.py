"""Replay: the same bytes whatever the shares and batches, and what another recipe changes."""

import time

import msgspec
import pytest

from signals.comparison import compare
from signals.recipe import Recipe, load_recipe
from signals.replay import as_revisions, published, replay
from signals.workshop import reviewer_of
from tendril.consent import person_of
from tendril.log import MemoryLog
from tendril.records import Consent, Episode, Record, encode
from tendril.settings import Settings, SignalsSettings
from tests.builders import make_feedback, make_trace
from tests.signals.streams import make_silence

SETTINGS = Settings(
    signals=SignalsSettings(feedback_window_s=0.01, revise_after_s=(), lateness_s=0.0)
)


def _log(*first: Record, num: int = 60) -> MemoryLog:
    """Accepted, rejected, silent and unanswered; what comes last lets every window pass."""
    log = MemoryLog()
    log.append([("c", record) for record in first])
    for i in range(num):
        session = f"s{i % 7}"
        make = make_silence if i % 5 == 4 else make_trace
        kind = "suggestion.accepted" if i % 3 else "suggestion.rejected"
        about = {"trace_id": f"t{i:03d}", "session_id": session}
        event = (session, make_feedback(event_id=f"e{i}", type=kind, **about))
        log.append([*([event] if i % 4 else []), (session, make(**about))])
    time.sleep(0.02)
    for record in (make_trace(session_id="end"), make_feedback(session_id="end", trace_id="x")):
        log.append([("end", record)])
    return log


def _recipe(threshold: float) -> Recipe:
    recipe = load_recipe(None)
    completion = msgspec.structs.replace(recipe.completion, threshold=threshold)
    return msgspec.structs.replace(recipe, completion=completion)


def _replay(log: MemoryLog, recipe: Recipe, **options: object) -> list[Episode]:
    reviewer = reviewer_of(SETTINGS, recipe)
    return replay(log, reviewer, SETTINGS, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_shares", [1, 2, 3])
@pytest.mark.parametrize("batch_records", [1, 7, 1_000])
def test_shares_and_batches_change_no_byte(num_shares: int, batch_records: int):
    log, recipe = _log(), load_recipe(None)
    expected = {encode(e) for e in _replay(log, recipe)}
    parts = [
        _replay(log, recipe, share=(i, num_shares), batch_records=batch_records)
        for i in range(num_shares)
    ]
    found = sorted((e for part in parts for e in part), key=lambda e: e.segments[0].trace_id)
    assert {encode(e) for e in found} == expected
    assert len(found) == len(expected) == 60


def test_another_threshold_moves_every_shown_reward_and_is_told_before_it_is_sent():
    log = _log()
    first = _replay(log, _recipe(0.25))
    log.append([(e.session_id, e) for e in first])
    before = published(log)
    assert as_revisions(_replay(log, _recipe(0.25)), before) == []
    replayed = _replay(log, _recipe(0.5))
    told = compare(before, replayed)
    known = [e for e in first if e.reward is not None]
    assert (told.num_compared, told.rewards.num) == (len(first), len(known))
    assert told.became_known == told.became_unknown == 0
    assert told.rewards.mean_after is not None
    assert told.rewards.mean_before is not None
    assert told.rewards.mean_after < told.rewards.mean_before
    revisions = as_revisions(replayed, before)
    assert {e.outcome for e in revisions}.isdisjoint({"suppressed", "unknown"})
    for revision in revisions:
        old = before[revision.segments[0].trace_id]
        assert (revision.revision, revision.supersedes) == (old.revision + 1, old.episode_id)
        assert revision.reward == pytest.approx((old.reward or 0.0) - 0.25)
        assert not revision.is_first("final")  # nothing is trained on twice


def test_who_had_asked_to_be_forgotten_is_not_judged_again():
    trace = make_trace()
    gone = Consent(person=person_of(trace.tenant, trace.user_key), deleted=True, at=0.0)
    assert _replay(_log(gone), load_recipe(None)) == []


def test_only_what_was_logged_since_then_is_replayed():
    assert _replay(_log(), load_recipe(None), since=4e9) == []
