"""Figures about many traces: centring, the action mix, sensitivity."""

import math
import random

import pytest

from signals.centring import Centres, Observed, bucket_of, centred, fit_centres
from signals.components.action_mix import action_mix, action_of
from signals.edit import CHAT_PLACES
from signals.outcome import fold
from signals.sensitivity import sensitivity, variants
from tendril.records import ToolCall
from tests.builders import make_trace
from tests.signals.recipe.steps import ACCEPTED, RECIPE, judged, kept, make_events, make_recipe
from tests.signals.streams import make_silence


def test_centring_takes_off_the_mean_of_the_bucket():
    observed = [Observed("editor/python", 0.5)] * 5_000 + [Observed("chat/-", -0.5)] * 5_000
    centres = fit_centres(observed, fitted_at=9.0)
    assert centres.overall == 0.0
    assert centred(0.5, "editor/python", centres) == pytest.approx(0.5 * 50 / 5_050)
    assert centred(0.25, "never/seen", centres) == 0.25
    assert centred(None, "chat/-", centres) is None
    assert centred(0.25, "chat/-", Centres()) == 0.25


def test_a_small_bucket_is_believed_half_at_fifty():
    observed = [Observed("a", 1.0)] * 50 + [Observed("b", 0.0)] * 50
    centres = fit_centres(observed, fitted_at=0.0)
    assert centres.by_bucket == pytest.approx({"a": 0.75, "b": 0.25})


def test_a_fit_does_not_depend_on_order_and_is_named_by_its_digest():
    rng = random.Random(0)
    observed = [Observed(f"b{i % 3}", rng.uniform(-1, 1), rng.random()) for i in range(100)]
    fit = fit_centres(observed, fitted_at=1.0)
    rng.shuffle(observed)
    assert fit_centres(observed, fitted_at=1.0) == fit
    assert fit.digest != fit_centres(observed[1:], fitted_at=1.0).digest


def test_a_judgement_names_its_bucket():
    assert judged({"type": ACCEPTED, "surface": "editor"}).bucket == bucket_of("editor")
    assert judged(ACCEPTED).bucket == "suggestion/-"


def test_the_action_mix_shows_who_asks_instead_of_editing():
    def action(*steps, **fields):
        trace = make_trace(route="chat", **fields)
        outcome = fold(make_events(*steps), shown_bytes=10, places=CHAT_PLACES)
        return action_of(trace, outcome)

    clarify = {"type": "user.followed_up", "reason": "clarify"}
    broken = (ToolCall(name="f", valid=False), ToolCall(name="g", valid=True))
    silent = make_silence()
    mix = action_mix([
        action("edit.applied"), action(clarify), action(tool_calls=broken),
        action({"type": "user.followed_up", "reason": "satisfied"}),
        action_of(silent, fold((), shown_bytes=0)),
    ])  # fmt: skip
    assert mix == (5, 0.8, 0.25, 0.5, 0.5, 10.0)
    assert action_mix([]).edit_rate is None


def test_sensitivity_is_that_of_the_formula():
    trace = make_trace()
    cases = [
        (trace, make_events(ACCEPTED)),
        (trace, make_events(ACCEPTED, kept(30, 0.5))),
        (trace, make_events("suggestion.rejected")),
        (trace, []),
    ]
    rows = {(row.figure, row.factor): row for row in sensitivity(RECIPE, cases)}
    threshold = rows["completion.threshold", 1.2]
    assert (threshold.num_known, threshold.num_turned) == (3, 0)
    assert (threshold.mean_change, threshold.max_change) == pytest.approx((0.05, 0.05))
    assert rows["chat.vote", 0.8].max_change == 0.0  # no chat among the cases
    assert rows["retention.0.weight", 1.2].max_change == 0.0  # one horizon seen: renormalised
    # Half kept is worth 0.25; a threshold of 0.5 would make it 0, of 0.6 turn it.
    half = sensitivity(make_recipe(completion={"threshold": 0.48}), cases[1:2], factors=(1.2,))
    assert {row.figure: row.num_turned for row in half}["completion.threshold"] == 1


def test_a_variant_differs_in_one_figure_and_keeps_the_rules():
    names = [name for name, changed in variants(RECIPE, 1.2) if changed.digest != RECIPE.digest]
    assert {"chat.retention", "retention.1.weight", "followed_up.clarify"} <= set(names)
    assert not any("horizon_s" in name for name in names)
    too_loud = make_recipe(chat={"vote": 0.1, "rating": 0.0})
    assert "chat.vote" not in dict(variants(too_loud, 1.2))  # over a tenth: no valid recipe
    assert math.isclose(dict(variants(RECIPE, 0.8))["chat.retention"].chat.retention, 0.36)
