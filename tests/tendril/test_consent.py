"""Consent: opting out before, during and after a session, tenants, deletions, replays."""

import math
import sqlite3

from hypothesis import given
from hypothesis import strategies as st

from signals.privacy.consent import SCHEMA, ConsentTable
from tendril.consent import (
    Change,
    ConsentFollower,
    Consents,
    consent_of,
    may_keep_content,
    may_train,
    person_of,
)
from tendril.log import MemoryLog
from tendril.records import Consent, encode
from tendril.settings import TenantConsent
from tests.builders import make_feedback

NO_WORD = TenantConsent()


def change(at: float, *, train: bool | None = None, content: bool | None = None,
           deleted: bool = False) -> Change:  # fmt: skip
    return Change(at, train, content, deleted)


def test_without_a_word_a_trace_trains_as_its_own_flag_says_and_keeps_no_content() -> None:
    assert may_train((), NO_WORD, made_at=5.0)
    assert not may_keep_content((), NO_WORD, asked=False)
    assert may_keep_content((), NO_WORD, asked=True)


def test_who_opted_out_before_during_or_after_a_trace_is_not_trained_on() -> None:
    for opted_out_at in (1.0, 5.0, 9.0):
        assert not may_train((change(opted_out_at, train=False),), NO_WORD, made_at=5.0)


def test_a_later_yes_grants_nothing_that_was_made_under_a_no() -> None:
    changes = (change(1.0, train=False), change(10.0, train=True))
    assert not may_train(changes, NO_WORD, made_at=5.0)
    assert may_train(changes, NO_WORD, made_at=11.0)
    assert may_train(changes, NO_WORD, made_at=0.5)  # made before the no, and they agree again


def test_a_look_at_an_earlier_moment_does_not_know_what_came_later() -> None:
    changes = (change(10.0, train=False),)
    assert may_train(changes, NO_WORD, made_at=5.0, as_of=9.0)
    assert not may_train(changes, NO_WORD, made_at=5.0, as_of=10.0)


def test_a_tenants_word_stands_above_its_users_both_ways() -> None:
    no = (change(1.0, train=False, content=False),)
    assert may_train(no, TenantConsent(train=True), made_at=5.0)
    assert not may_train((), TenantConsent(train=False), made_at=5.0)
    assert may_keep_content(no, TenantConsent(content=True), asked=False)
    assert not may_keep_content((), TenantConsent(content=False), asked=True)


def test_nothing_made_before_a_deletion_is_ever_used_whatever_tenant_and_user_say_later() -> None:
    changes = (change(10.0, deleted=True), change(20.0, train=True, content=True))
    assert not may_train(changes, TenantConsent(train=True), made_at=5.0)
    assert not may_train(changes, NO_WORD, made_at=15.0)  # not yet agreed again
    assert may_train(changes, NO_WORD, made_at=25.0)
    assert not may_keep_content(changes, NO_WORD, asked=True, as_of=15.0)
    assert may_keep_content(changes, NO_WORD, asked=True, as_of=25.0)


def test_words_about_training_and_content_are_kept_apart() -> None:
    changes = (change(1.0, train=False), change(2.0, content=True))
    assert not may_train(changes, NO_WORD, made_at=5.0)
    assert may_keep_content(changes, NO_WORD, asked=True)


def test_only_events_about_consent_become_decisions() -> None:
    assert consent_of(make_feedback()) is None
    event = make_feedback(type="consent.changed", trace_id=None, train_consent=False)
    assert consent_of(event) == Consent(
        person=person_of("acme", "u1"), train=False, at=event.client_time
    )
    wish = make_feedback(type="user.deletion_requested", trace_id=None)
    found = consent_of(wish)
    assert found is not None
    assert found.deleted
    assert b"u1" not in encode(found)  # the digest names nobody


def test_a_follower_reads_from_the_beginning_and_says_whom_news_is_about() -> None:
    log = MemoryLog()
    person = person_of("acme", "u1")
    log.append([(person, Consent(person=person, train=False, at=1.0))])
    follower = ConsentFollower(log, {})
    assert not follower.is_ready
    assert follower.follow() == {person}
    assert follower.is_ready
    assert follower.follow() == frozenset()
    assert not follower.consents.trains_now("acme", "u1", asked=True)
    assert follower.consents.trains_now("acme", "u2", asked=True)
    assert follower.consents.trains_now("other", "u1", asked=True)
    follower.close()


times = st.integers(0, 6).map(float)
flags = st.sampled_from([None, True, False])


@given(
    st.lists(st.builds(Change, times, flags, flags, st.booleans()), max_size=6),
    st.builds(TenantConsent, train=flags, content=flags),
    times,
    st.one_of(times, st.just(math.inf)),
    st.lists(times, min_size=6, max_size=6),
)
def test_the_durable_fold_decides_as_the_one_in_memory(
    changes: list[Change],
    tenant: TenantConsent,
    made_at: float,
    as_of: float,
    said_at: list[float],
) -> None:
    """Whenever they were said, repeats and old ones delivered late included."""
    changes = sorted(changes, key=lambda c: c.at)  # a log's times only grow
    db = sqlite3.connect(":memory:")
    db.executescript(SCHEMA)
    table, memory = ConsentTable(db, {"acme": tenant}), Consents({"acme": tenant})
    for offset, c in enumerate(changes):
        consent = Consent(person=person_of("acme", "u"), train=c.train, content=c.content,
                          deleted=c.deleted, at=said_at[offset])  # fmt: skip
        memory.add(consent, c.at)
        for _ in range(2):  # a repeat after a crash
            table.change(consent, offset=offset, at=c.at)
    asked = {"made_at": made_at, "as_of": as_of}
    assert table.allows_training("acme", "u", **asked) == memory.allows_training(
        "acme", "u", **asked
    )
    assert table.allows_content("acme", "u", asked=True) == memory.allows_content(
        "acme", "u", asked=True
    )
    db.close()


def test_an_old_yes_that_is_delivered_late_does_not_undo_a_newer_no() -> None:
    """A client's offline queue, or a retry after its id was forgotten."""
    consents, person = Consents({}), person_of("acme", "ann")
    consents.add(Consent(person=person, train=False, at=100.0), 101.0)
    consents.add(Consent(person=person, train=True, at=50.0), 200.0)
    assert consents.trains_now("acme", "ann", asked=True) is False
    consents.add(Consent(person=person, train=True, at=300.0), 301.0)
    assert consents.trains_now("acme", "ann", asked=True) is True
