"""The real data of tests: there, whole, as described, and refused in words when it is not there."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.datasets import cdnow, chitchat, open_bandit
from tests.data import DataMissing, wheel

LOCK = Path(__file__).parent.parent / "requirements" / "data.lock"


def test_every_line_of_the_lock_is_there_and_opens() -> None:
    pins = re.findall(r"^(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}$", LOCK.read_text(), re.MULTILINE)
    assert len(pins) >= 15
    for name, version in pins:
        with wheel(name, version) as archive:
            assert any(".dist-info/" in member for member in archive.namelist())


def test_a_missing_wheel_names_the_command_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="make data"):
        wheel("click", "8.1.7", folder=tmp_path)
    with pytest.raises(DataMissing, match="nobody-made-this"):
        wheel("nobody-made-this")


def test_of_several_versions_one_has_to_be_named() -> None:
    with pytest.raises(ValueError, match=r"several: \['7.1.2', '8.0.0'"):
        wheel("click")


def test_names_compare_as_the_index_compares_them() -> None:
    with wheel("Chitchat_Dataset") as one, wheel("chitchat.dataset") as other:
        assert one.filename == other.filename


def test_the_chat_corpus_has_its_repeats_and_one_sided_talks_and_no_words() -> None:
    events, ratings = chitchat()
    assert (len(events), len(ratings)) == (258_145, 5_988)
    assert sum(count - 1 for count in Counter(events).values()) == 749
    senders: dict[int, set[str]] = {}
    for event in events:
        senders.setdefault(event.conversation, set()).add(event.sender)
    assert sum(len(who) < 2 for who in senders.values()) == 3_150
    assert len({event.sender for event in events}) == 1_315
    assert all(re.fullmatch("[0-9a-f]{16}", x) for x in (events[0].sender, events[0].text_digest))
    assert sum(set(rating[1:]) == {5} for rating in ratings) == 2_920


def test_open_bandit_has_its_clicks_and_true_propensities() -> None:
    clicks = {
        (policy, name): int(open_bandit(policy, name).clicked_N.sum())
        for policy in ("random", "bts")
        for name in ("all", "men", "women")
    }
    assert list(clicks.values()) == [38, 46, 46, 42, 69, 46]
    log = open_bandit("random", "all")
    assert (log.num_items, np.unique(log.positions_N).tolist()) == (80, [1, 2, 3])
    assert np.unique(log.propensities_N).tolist() == [1 / 80]


def test_cdnow_has_its_customers_and_their_second_purchases() -> None:
    purchases = cdnow()
    delays = purchases.second_day_N - purchases.first_day_N
    assert delays.size == 23_570
    assert np.mean(delays <= 180) == pytest.approx(0.3745, abs=5e-5)
    assert np.nanmin(delays) == 1
