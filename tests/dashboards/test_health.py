"""A hop is judged by the hop that feeds it."""

from pathlib import Path

from dashboards.health import Limits, StageName, limits_of, stages_of
from tendril.settings import LearnerSettings, Settings, SignalsSettings

LIMITS = Limits(request=30, feedback=60, episode=120, trained=180, live=180)


def _levels(newest_at: dict[StageName, float | None], now: float) -> list[str]:
    return [stage.level for stage in stages_of(newest_at, LIMITS, now)]


def test_a_hop_is_not_blamed_for_what_stopped_before_it() -> None:
    newest: dict[StageName, float | None] = {
        "request": 0, "feedback": 0, "episode": 0, "trained": 0, "live": 0,
    }  # fmt: skip
    assert _levels(newest, now=1_000.0) == ["stale", "fresh", "fresh", "fresh", "fresh"]


def test_late_beyond_the_limit_stale_beyond_twice_the_limit() -> None:
    newest: dict[StageName, float | None] = {
        "request": 1_000, "feedback": 940, "episode": 819, "trained": 458, "live": None,
    }  # fmt: skip
    assert _levels(newest, now=1_000.0) == ["fresh", "fresh", "late", "stale", "none"]


def test_limits_follow_the_configured_cadence() -> None:
    settings = Settings(
        workspace=Path("w"),
        learner=LearnerSettings(publish_every_s=60),
        signals=SignalsSettings(feedback_window_s=20),
    )
    limits = limits_of(settings)
    assert (limits.episode, limits.trained, limits.live) == (80, 180, 180)
