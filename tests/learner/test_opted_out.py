"""Training read: who opts out after their episodes closed is not trained on any more."""

from collections import Counter
from pathlib import Path

from learner.process import Learner
from tendril.consent import person_of
from tendril.log import MemoryLog
from tendril.records import Consent, Episode
from tests.learner.workbench import append, learnable_episodes, make_settings


def opt_out(log: MemoryLog, episode: Episode) -> None:
    person = person_of(episode.tenant, episode.user_key)
    append(log, Consent(person=person, train=False, at=1.0))


def test_an_opt_out_between_closing_and_reading_keeps_the_episode_out(tmp_path: Path) -> None:
    settings, log = make_settings(tmp_path), MemoryLog()
    theirs = learnable_episodes(settings, 2, user_key="ada")
    others = learnable_episodes(settings, 4, user_key="bob")
    append(log, *theirs, *others)
    opt_out(log, theirs[0])
    learner = Learner(settings, log)
    learner.turn()
    assert learner.state.counts == {"opted out": 2, "trained": 4}
    assert learner.ledger().balanced
    learner.close()


def test_what_waits_in_an_unfinished_batch_is_taken_out_of_it(tmp_path: Path) -> None:
    settings, log = make_settings(tmp_path), MemoryLog()
    theirs = learnable_episodes(settings, 3, user_key="ada")
    append(log, *theirs)
    learner = Learner(settings, log)
    learner.turn()
    assert learner.ledger().outcomes["episodes"] == {"pending": 3}
    opt_out(log, theirs[0])
    append(log, *learnable_episodes(settings, 3, user_key="bob"))
    learner.turn()
    assert Counter(learner.ledger().outcomes["episodes"]) == {"opted out": 3, "pending": 3}
    assert learner.state.num_steps == 0
    append(log, *learnable_episodes(settings, 4, user_key="eve")[3:])
    learner.turn()
    assert learner.state.counts == {"opted out": 3, "trained": 4}
    assert learner.ledger().balanced
    learner.close()
