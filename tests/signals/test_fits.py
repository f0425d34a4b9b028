"""Fits in the loop: what early looks weigh, what rewards are centred by, and the daily refit."""

import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from signals.centring import Centres
from signals.debias.delay import DelayFit
from signals.debias.delay_weights import DelayWeights
from signals.decisions import Decided, Decisions
from signals.fitted import NO_FITS, Fits
from signals.joiner import Joiner
from signals.refit import Refitter
from signals.state import State
from tendril.lake import open_lake
from tendril.lake.rows import episodes_to_arrow, feedback_to_arrow, traces_to_arrow
from tendril.log import LogRecord, MemoryLog
from tendril.records import Episode, InvalidRecord, RewardFit
from tendril.settings import LakeSettings, Settings, SignalsSettings
from tests.builders import make_episode, make_feedback, make_trace
from tests.signals.streams import IN_MEMORY, LATER, feed, make_records, make_reviewer

BUCKET = "suggestion/-"
HALF_BY_15_S = DelayWeights(
    fits=(DelayFit(
        surface=BUCKET, made_at=0.0, window_s=60.0, cohort_from=0.0, cohort_to=0.0, num_traces=200,
        num_outcomes=200, delays_s=(15.0, 50.0), shares=(0.5, 1.0),
    ),),
)  # fmt: skip
STREAM = make_records([
    (10.0, make_trace(trace_id="t1")), (11.0, make_feedback(event_id="e1", trace_id="t1")),
])  # fmt: skip


def _record(fit: DelayWeights | Centres) -> RewardFit:
    kind = "delays" if isinstance(fit, DelayWeights) else "centres"
    content = msgspec.json.encode(fit, order="sorted")
    return RewardFit(kind=kind, digest=fit.digest, content=content, made_at=1.0)  # type: ignore[arg-type]


def _fits(*records: RewardFit, logged_at: float) -> Fits:
    fits = Fits()
    for record in records:
        fits.take(record, logged_at=logged_at)
    return fits


def _looks(fits: Fits) -> list[Episode]:
    reviewer = make_reviewer(revise_after_s=(15.0,))
    joiner = Joiner(State(IN_MEMORY), reviewer, decided=Decided(fits=fits))
    feed(joiner, STREAM)
    return [r for _, _, r in joiner.take_outgoing() if isinstance(r, Episode)]


def test_an_early_outcome_stands_for_those_that_come_later_and_the_final_one_for_itself():
    centres = Centres(overall=0.1, by_bucket={BUCKET: 0.25})
    early, final = _looks(_fits(_record(HALF_BY_15_S), _record(centres), logged_at=5.0))
    assert (early.maturity, early.weight, early.maturity_weight) == ("provisional", 2.0, 2.0)
    assert (final.maturity, final.weight, final.maturity_weight) == ("final", 1.0, 1.0)
    assert early.reward is not None
    assert early.centred_reward == early.reward - 0.25
    assert early.fits_digest == final.fits_digest != ""


def test_a_fit_counts_from_the_moment_it_is_logged():
    early, final = _looks(_fits(_record(HALF_BY_15_S), logged_at=30.0))
    assert (early.weight, early.fits_digest) == (1.0, "")
    assert final.fits_digest != ""


def test_without_fits_nothing_is_corrected():
    assert [(e.weight, e.centred_reward, e.fits_digest) for e in _looks(Fits())] == [
        (1.0, None, ""), (1.0, None, ""),
    ]  # fmt: skip


def test_repeats_change_nothing_and_what_is_unreadable_is_refused():
    fits = _fits(_record(HALF_BY_15_S), _record(HALF_BY_15_S), logged_at=5.0)
    assert fits.at(4.9) == NO_FITS
    assert fits.at(5.0).delays == HALF_BY_15_S
    torn = msgspec.structs.replace(_record(HALF_BY_15_S), content=b"{")
    with pytest.raises(InvalidRecord):
        fits.take(torn, logged_at=6.0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    signals = SignalsSettings(feedback_window_s=3_600.0, refit_cohort_s=86_400.0)
    lake = LakeSettings(root=str(tmp_path / "lake"))
    return Settings(workspace=tmp_path, signals=signals, lake=lake)


def _fill(settings: Settings, now: float, num: int) -> None:
    """Delays evenly from 0 to 1,000 s; three of four rewards are 0.75, one is -0.25."""
    lake = open_lake(settings)
    starts = [now - 10_000.0 - 10.0 * n for n in range(num)]
    delays = np.linspace(0, 1_000, num)
    traces = [make_trace(trace_id=f"t{n}", served_at=at) for n, at in enumerate(starts)]
    events = [
        make_feedback(trace_id=f"t{n}", event_id=f"e{n}", ingested_at=at + delay)
        for n, (at, delay) in enumerate(zip(starts, delays, strict=True))
    ]
    places = [LogRecord("traces", 0, n, "s", b"", at) for n, at in enumerate(starts)]
    lake.append("traces", traces_to_arrow(traces, places), {"a": num})
    places = [LogRecord("feedback", 0, n, "s", b"", e.ingested_at) for n, e in enumerate(events)]
    lake.append("feedback", feedback_to_arrow(events, places), {"a": num})
    episodes = [
        make_episode(
            episode_id=f"e{n}", served_at=trace.served_at, closed_at=trace.served_at + 3_600,
            reward=-0.25 if n % 4 == 0 else 0.75, bucket=BUCKET,
            segments=(msgspec.structs.replace(make_episode().segments[0], trace_id=f"t{n}"),),
        )
        for n, trace in enumerate(traces)
    ]  # fmt: skip
    lake.append("episodes", episodes_to_arrow(episodes), {"a": num})


def test_a_refit_measures_delays_and_means_and_is_on_the_log_once_a_day(settings: Settings):
    log, now = MemoryLog(), time.time()
    _fill(settings, now, 400)
    decisions = Decisions(log)
    refitter = Refitter(settings, log, open_lake(settings), decisions.decided.fits)
    assert refitter.look(now) is True
    assert refitter.look(now + 60) is False
    decisions.poll()
    fits = decisions.decided.fits.at(LATER)
    [fit] = fits.delays.fits
    assert (fit.surface, fit.num_outcomes) == (BUCKET, 400)
    assert [round(fit.share_at(age_s), 2) for age_s in (100, 500, 900)] == [0.1, 0.5, 0.9]
    assert abs(fits.centres.by_bucket[BUCKET] - 0.5) < 1e-9
    again = Refitter(settings, log, open_lake(settings), decisions.decided.fits)
    assert again.look(now + 60) is False  # a restart does not fit anew
    assert again.look(now + 86_401) is True


def test_too_few_outcomes_are_refused_and_correct_nothing(settings: Settings):
    log, now = MemoryLog(), time.time()
    _fill(settings, now, 40)
    decisions = Decisions(log)
    assert Refitter(settings, log, open_lake(settings), decisions.decided.fits).look(now)
    decisions.poll()
    assert decisions.decided.fits.at(LATER).delays.fits == ()
