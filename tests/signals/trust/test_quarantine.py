"""Quarantines: the fold of the records, what each holds back, and that a release stays one."""

from signals.trust.finding import Finding
from signals.trust.quarantine import by_hand, placed, released
from tendril.quarantine import Quarantines, Subject, account_id
from tendril.records import PolicySpan
from tests.builders import make_episode, make_segment


def _place(scope, scope_id: str, *, since: float = 0.0, until: float | None = None):
    return by_hand(scope, scope_id, since=since, until=until, reason="r", actor="me", at=1.0)


def test_an_episode_is_held_by_user_tenant_trace_and_policy():
    segment = make_segment(
        trace_id="t1", policy_spans=(PolicySpan(policy_version=7, num_tokens=2),)
    )
    episode = make_episode(tenant="acme", user_key="u1", served_at=50.0, segments=(segment,))
    for scope, name in (
        ("user", account_id("acme", "u1")), ("tenant", "acme"), ("trace", "t1"), ("policy", "7"),
    ):  # fmt: skip
        record = _place(scope, name)
        assert Quarantines([record]).of(Subject.of(episode)) == [record]
        assert Quarantines([_place(scope, name + "x")]).of(Subject.of(episode)) == []


def test_only_rows_served_in_its_time_are_held():
    held = Quarantines([_place("tenant", "acme", since=10.0, until=20.0)])
    for served_at, is_held in ((9.9, False), (10.0, True), (19.9, True), (20.0, False)):
        assert bool(held.of(Subject.of(make_episode(served_at=served_at)))) == is_held


def test_a_release_lets_rows_in_and_the_same_finding_does_not_place_it_again():
    finding = Finding(
        detector="bots", scope="tenant", scope_id="acme", figure=1.0, limit=0.5, since=0.0,
        until=100.0, why="fast",
    )  # fmt: skip
    known, subject = Quarantines(), Subject.of(make_episode(served_at=50.0))
    [record] = placed([finding], known, actor="signals", at=5.0)
    known.take(record, logged_at=5.5)
    assert known.of(subject) == [record]
    assert placed([finding], known, actor="signals", at=6.0) == []
    known.take(released(record, reason="a test run", actor="me", at=7.0), logged_at=7.5)
    assert known.of(subject) == []
    assert known.of(subject, as_of=5.4) == []
    assert known.of(subject, as_of=7.4) == [record]
    assert placed([finding], known, actor="signals", at=8.0) == []
    assert [r.state for r in known.all()] == ["released"]


def test_records_folded_twice_or_out_of_order_give_the_same():
    record = _place("tenant", "acme")
    release = released(record, reason="r", actor="me", at=2.0)
    for order in ([record, release], [release, record], [record, release, record]):
        assert Quarantines(order).open() == []
