"""Each detector catches an attack of its own and leaves an honest service alone, with rates."""

import pytest

from signals.trust.detectors import DETECTORS, detect
from signals.trust.window import History
from tests.signals.trust.windows import ATTACKS, attacked, honest, honest_history, window

NUM_SEEDS = 12


@pytest.fixture(scope="module")
def history() -> History:
    return honest_history(7)


def test_there_is_an_attack_for_every_detector():
    assert ATTACKS.keys() == DETECTORS.keys()
    assert len(DETECTORS) == 17


@pytest.mark.parametrize("name", ATTACKS)
def test_a_planted_attack_is_found(name: str, history: History):
    caught = [bool(DETECTORS[name](attacked(name, seed, history))) for seed in range(3)]
    assert caught == [True] * 3


def test_honest_windows_are_left_alone(history: History):
    alarms = [
        (seed, finding.detector, finding.why)
        for seed in range(NUM_SEEDS)
        for finding in detect(honest(seed, history))
    ]
    # Of 17 detectors with up to a dozen figures each, on 12 windows.
    assert len(alarms) <= 2, alarms


def test_a_detector_can_be_turned_off(history: History):
    found = attacked("bots", 0, history)
    assert {f.detector for f in detect(found)} >= {"bots"}
    assert "bots" not in {f.detector for f in detect(found, off=("bots",))}


def test_findings_name_whom_they_are_about_and_no_words(history: History):
    [finding] = DETECTORS["injections"](attacked("injections", 0, history))
    assert (finding.scope, finding.scope_id, finding.holds) == ("trace", "t1-1", True)
    assert "Ignore" not in finding.why
    assert {f.scope_id for f in DETECTORS["bots"](attacked("bots", 0, history))} == {"acme/u3"}
    assert "acme/loud" in {
        f.scope_id for f in DETECTORS["influence"](attacked("influence", 0, history))
    }


def test_a_quiet_hour_has_nothing_to_report(history: History):
    assert detect(window([], [], history, ledger={}, texts=[], canaries=[])) == []
