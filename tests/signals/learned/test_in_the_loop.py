"""The learned reward from lake to recipe: fitted by the command, used by early looks alone."""

import math
import random
import time
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest

from signals.judge import judge
from signals.learned.from_lake import observations
from signals.learned.model import LearnedReward
from signals.recipe import load_recipe
from tendril.cli.fit_reward import RewardRefused, fit_reward
from tendril.lake import open_lake
from tendril.lake.rows import episodes_to_arrow, traces_to_arrow
from tendril.log import LogRecord
from tendril.records import Latency
from tendril.settings import LakeSettings, Settings
from tests.builders import make_episode, make_feedback, make_trace

DAY_S = 86_400.0
MODEL = LearnedReward(
    names=("retention",), means=(0.5,), scales=(0.25,), weights=(1.0,), absent_weights=(0.0,),
    bias=0.0, knots=((-2.0, 0.0), (2.0, 1.0)),
)  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TENDRIL_WORKSPACE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return Settings(workspace=tmp_path, lake=LakeSettings(root="lake"))


def _fill(settings: Settings, *, tells: bool) -> None:
    """Slow replies end badly, which the recipe does not see early; or nothing tells anything."""
    lake, now, chance = open_lake(settings), time.time(), random.Random(1)
    traces: list[Any] = []
    episodes: list[Any] = []
    for n in range(4_000):
        at, latency_s = now - chance.uniform(2, 27) * DAY_S, chance.expovariate(1.0)
        odds = 1 / (1 + math.exp(2.5 * (latency_s - 1))) if tells else 0.5
        user, is_good = f"u{n % 300}", chance.random() < odds
        latency = Latency(queue_s=0.0, first_token_s=0.0, total_s=latency_s)
        traces.append(make_trace(trace_id=f"t{n}", user_key=user, served_at=at, latency=latency))
        segment = msgspec.structs.replace(make_episode().segments[0], trace_id=f"t{n}")
        about = {"user_key": user, "served_at": at, "segments": (segment,), "outcome": "accepted"}
        kept = chance.random()
        episodes.append(make_episode(
            episode_id=f"a{n}", closed_at=at + 30, reward=kept - 0.25, maturity="provisional",
            components={"retention": kept}, **about,
        ))  # fmt: skip
        episodes.append(make_episode(
            episode_id=f"b{n}", closed_at=at + DAY_S, reward=0.5 if is_good else -0.5, revision=1,
            maturity="final", previous_maturity="provisional", **about,
        ))  # fmt: skip
    places = [LogRecord("traces", 0, n, "s", b"", now) for n in range(len(traces))]
    lake.append("traces", traces_to_arrow(traces, places), {"a": len(traces)})
    lake.append("episodes", episodes_to_arrow(episodes), {"a": len(episodes)})


def test_what_tells_the_end_early_is_learned_and_written(settings: Settings, tmp_path: Path):
    _fill(settings, tells=True)
    [first, *_] = observations(open_lake(settings), time.time() - 28 * DAY_S)
    assert set(first.features) == {"retention", "latency_s", "num_tokens"}
    assert first.known_at == first.served_at + DAY_S
    out = tmp_path / "learned.json"
    assert fit_reward(None, out, days=28, later_days=10) == 0
    recipe_file = tmp_path / "recipe.toml"
    recipe_file.write_text('learned = "learned.json"\n' + _default_recipe())
    recipe = load_recipe(recipe_file)
    assert recipe.learned is not None
    assert recipe.digest != load_recipe(None).digest
    quick, slow = (recipe.learned.reward({"retention": 0.5, "latency_s": s}) for s in (0.1, 4.0))
    assert quick > 0.3
    assert slow < -0.3


def test_what_tells_nothing_is_not_written(settings: Settings, tmp_path: Path):
    _fill(settings, tells=False)
    out = tmp_path / "learned.json"
    assert fit_reward(None, out, days=28, later_days=10) == 1
    assert not out.exists()


def test_an_empty_lake_is_refused_in_words(settings: Settings, tmp_path: Path):
    with pytest.raises(RewardRefused, match="got 0 in all"):
        fit_reward(None, tmp_path / "learned.json", days=28, later_days=7)


def test_early_looks_are_predicted_and_the_end_is_what_it_is():
    recipe = msgspec.structs.replace(load_recipe(None), learned=MODEL)
    trace, events = make_trace(), [make_feedback()]
    early = judge(recipe, trace, events, age_s=30.0)
    late = judge(recipe, trace, events, age_s=math.inf)
    features = early.components | {"latency_s": 0.0, "num_tokens": 0.0}
    assert early.reward == MODEL.reward(features)
    assert late == judge(load_recipe(None), trace, events, age_s=math.inf)
    assert early.reward != late.reward


def _default_recipe() -> str:
    return (resources.files("signals") / "default_recipe.toml").read_text()
