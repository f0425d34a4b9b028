"""The fold, by value, from records on a real log."""

from pathlib import Path

import msgspec
import pytest

from dashboards.follower import LoopFollower
from dashboards.loop_view import LoopView
from dashboards.snapshot import LoopSnapshot, VersionView
from tendril.log import SqliteLog
from tendril.records import DeadLetter
from tests.builders import make_episode, make_manifest, make_release, make_trace
from tests.dashboards.run_log import START, make_decision, make_ledger, make_status, small_run


def _now() -> float:
    return START + 100.0


@pytest.fixture
def snapshot(tmp_path: Path) -> LoopSnapshot:
    log = SqliteLog(tmp_path / "log.db")
    log.append([("k", record) for record in small_run()])
    follower = LoopFollower(log, LoopView(now=_now))
    while follower.poll(timeout_s=0.0):
        pass
    follower.close()
    log.close()
    return follower.snapshot()


def _version(snapshot: LoopSnapshot, version: int) -> VersionView:
    [view] = [v for v in snapshot.versions if v.policy_version == version]
    return view


def test_repeated_records_are_counted_once(snapshot: LoopSnapshot) -> None:
    traffic = snapshot.traffic
    assert (traffic.num_decisions, traffic.num_failed, traffic.num_feedback) == (21, 1, 20)
    assert (traffic.num_episodes_train, traffic.num_episodes_held_out) == (18, 2)
    assert traffic.num_repeats == {"traces": 20, "feedback": 20, "episodes": 20}
    assert traffic.outcomes == {
        "accepted": 5, "accepted_partially": 2, "rejected": 6, "suppressed": 7,
    }  # fmt: skip


def test_rates_are_attributed_to_the_version_of_the_first_token(snapshot: LoopSnapshot) -> None:
    base, second = _version(snapshot, 1).rates, _version(snapshot, 2).rates
    assert (base.num_decisions, base.shown_rate, base.acceptance) == (11, 0.8, 0.25)
    assert base.reward_per_decision == pytest.approx((2 * 0.75 - 6 * 0.25) / 10)
    assert base.accepted_bytes_per_decision == 1.6
    assert (second.num_decisions, second.shown_rate, second.acceptance) == (10, 0.5, 1.0)
    assert second.reward_per_decision == pytest.approx((3 * 0.75 + 2 * 0.25) / 10)
    assert second.accepted_bytes_per_decision == 3.2
    assert (snapshot.base, snapshot.live) == (base, second)
    assert snapshot.total.acceptance == pytest.approx(7 / 13)


def test_versions_tell_their_life_gate_and_delta(snapshot: LoopSnapshot) -> None:
    states = {v.policy_version: (v.state, v.live) for v in snapshot.versions}
    assert states == {
        4: ("rolled_back", False), 3: ("gate_held", False), 2: ("promoted", True),
        1: ("promoted", False),
    }  # fmt: skip
    held = _version(snapshot, 3)
    assert held.verdict == "fail"
    assert [(c.name, c.value, c.limit) for c in held.checks if c.verdict != "pass"] == [
        ("kl", 0.31, 0.1)
    ]
    second = _version(snapshot, 2)
    assert (second.delta_bytes, second.full_bytes, second.delta_ratio) == (50, 1000, 20.0)
    assert (second.live_at, second.feedback_to_served_s) == (START + 58, 47.0)
    assert _version(snapshot, 4).delta_ratio == 10.0
    assert (snapshot.live_version, snapshot.live_since) == (2, START + 90)
    assert snapshot.newest_version == 4
    counts = snapshot.counts
    assert (counts.published, counts.shipped, counts.held, counts.rolled_back) == (3, 2, 1, 1)


def test_a_repeated_acknowledgement_is_one_swap(snapshot: LoopSnapshot) -> None:
    pauses = snapshot.swap_pause_ms
    assert (pauses.num, pauses.p50) == (3, 16.0)
    assert pauses.p99 == pytest.approx(19.92)
    assert _version(snapshot, 2).swap_pause_ms == 16.0
    assert [(m.at - START, m.policy_version, m.kind) for m in snapshot.marks] == [
        (-5.0, 1, "promoted"), (56.0, 2, "promoted"), (81.0, 4, "promoted"),
        (90.0, 2, "rolled_back"),
    ]  # fmt: skip


def test_stages_name_what_lags(snapshot: LoopSnapshot) -> None:
    ages = {stage.name: stage.age_s for stage in snapshot.stages}
    assert ages == {"request": 21.0, "feedback": 20.0, "episode": 19.0, "trained": 20.0, "live": 10}
    assert [stage.level for stage in snapshot.stages] == ["fresh"] * 5
    assert snapshot.health.level == "failing"
    assert snapshot.health.problems == ("failed requests in the last 5 minutes: 1",)


def test_curves_hold_one_value_a_bin(snapshot: LoopSnapshot) -> None:
    curves = snapshot.curves
    assert (curves.bin_s, [at - START for at in curves.at]) == (10.0, [0.0, 70.0])
    assert curves.num_decisions == (11, 10)
    assert curves.acceptance == (0.25, 1.0)
    assert curves.accepted_bytes_per_decision == (1.6, 3.2)


def test_the_snapshot_is_json(snapshot: LoopSnapshot) -> None:
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=LoopSnapshot) == snapshot


def test_an_empty_loop_waits_for_its_first_request() -> None:
    snapshot = LoopView(now=_now).snapshot()
    assert (snapshot.health.level, snapshot.live_version) == ("waiting", None)
    assert (snapshot.total.acceptance, snapshot.ledger_balanced) == (None, None)


def test_a_revision_replaces_the_episode_it_supersedes() -> None:
    view = LoopView(now=_now)
    _, episode = make_decision("t1", 1, "accepted", START)
    view.add(episode, START)
    revised = msgspec.structs.replace(
        episode, episode_id="e2", supersedes="e-t1", revision=1, outcome="undone", reward=-0.5,
        accepted_bytes=0,
    )  # fmt: skip
    view.add(revised, START)
    total = view.snapshot().total
    assert (total.num_episodes, total.acceptance, total.reward_per_decision) == (1, 0.0, -0.5)
    orphan = make_episode(supersedes="never seen", revision=1)
    view.add(orphan, START)
    assert view.snapshot().total.num_episodes == 1


def test_unknown_reward_is_not_zero_and_weights_count() -> None:
    view = LoopView(now=_now)
    view.add(make_episode(reward=None), START)
    view.add(make_episode(reward=0.75), START)
    view.add(make_episode(reward=-0.25, weight=0.5, outcome="ignored"), START)
    reward = view.snapshot().total.reward_per_decision
    assert reward == pytest.approx((0.75 - 0.125) / 1.5)


def test_what_nobody_saw_or_judged_is_no_rejection() -> None:
    view = LoopView(now=_now)
    view.add(make_episode(accepted_bytes=6), START)
    for outcome in ("unknown", "not_exposed"):
        view.add(make_episode(outcome=outcome, reward=None, accepted_bytes=0), START)
    total = view.snapshot().total
    assert (total.num_episodes, total.acceptance, total.accepted_bytes_per_decision) == (3, 1.0, 6)


def test_simulated_traffic_is_counted_apart() -> None:
    view = LoopView(now=_now)
    view.add(make_trace(lane="offline"), START)
    view.add(make_episode(lane="offline"), START)
    snapshot = view.snapshot()
    assert (snapshot.traffic.num_offline, snapshot.traffic.num_decisions) == (1, 0)
    assert snapshot.total.num_episodes == 0


def test_traffic_per_second_is_that_of_the_last_ten() -> None:
    view = LoopView(now=_now)
    for second in range(80, 100):
        for _ in range(3):
            view.add(make_trace(served_at=START + second), START)
    assert view.snapshot().traffic.per_second == 3.0


def test_an_unbalanced_ledger_fails_the_loop() -> None:
    view = LoopView(now=_now)
    view.add(make_trace(served_at=START + 99), START)
    view.add(make_ledger(read={"traces": 22}), START)
    snapshot = view.snapshot()
    assert snapshot.ledger_balanced is False
    assert snapshot.health.problems == (
        "ledger of signals does not balance: read 22 traces, accounted for 21",
    )


def test_a_node_that_refuses_a_version_fails_the_loop() -> None:
    view = LoopView(now=_now)
    view.add(make_trace(served_at=START + 99), START)
    view.add(make_status(policy_version=5, state="refused", detail="delta is torn"), START)
    assert view.snapshot().health.problems == (
        "node-1 (version 5) refused an update: delta is torn",
    )


def test_a_refusal_is_remembered_and_settled_by_a_swap() -> None:
    view = LoopView(now=_now)
    view.add(make_trace(served_at=START + 99), START)
    view.add(make_release(policy_version=2, at=START), START)
    view.add(make_status(state="refused", detail="delta is torn", at=START + 10), START)
    view.add(make_status(at=START + 12), START)  # the heartbeat after it
    [node] = view.snapshot().nodes
    assert (node.state, node.refusal, node.refused_s, node.refusing) == (
        "serving", "delta is torn", 90.0, True,
    )  # fmt: skip
    assert "refused an update: delta is torn" in " ".join(view.snapshot().health.problems)
    view.add(make_status(policy_version=2, swap_pause_ms=3.0, at=START + 20), START)
    [node] = view.snapshot().nodes
    assert (node.refusal, node.refusing) == ("delta is torn", False)
    assert view.snapshot().health.problems == ()


def test_nodes_are_told_apart_in_status_and_ledger_and_bounded() -> None:
    view = LoopView(now=_now)
    for i in range(250):
        view.add(make_status(node=f"node-{i:03}", num_running=i), START)
    for node in ("node-1", "node-2"):
        view.add(make_ledger(process="serving", node=node), START)
    snapshot = view.snapshot()
    assert [n.num_running for n in snapshot.nodes] == list(range(50, 250))
    assert [(line.process, line.node) for line in snapshot.ledger] == [
        ("serving", "node-1"), ("serving", "node-2"),
    ]  # fmt: skip


def test_what_must_not_be_learned_is_counted_by_reason() -> None:
    view = LoopView(now=_now)
    for reason in ("greedy", "top_p", "greedy", None):
        view.add(make_trace(untrainable=reason), START)
    view.add(make_trace(untrainable="greedy", lane="offline"), START)
    traffic = view.snapshot().traffic
    assert (traffic.num_decisions, traffic.untrainable) == (4, {"greedy": 2, "top_p": 1})


def test_without_releases_the_live_version_is_what_nodes_serve() -> None:
    view = LoopView(now=_now)
    view.add(make_status(policy_version=3, at=START + 1), START)
    view.add(make_status(policy_version=3, at=START + 9), START)
    snapshot = view.snapshot()
    assert (snapshot.live_version, snapshot.live_since) == (3, START + 1)
    assert (snapshot.nodes[0].versions_behind, snapshot.nodes[0].age_s) == (0, 91.0)


def test_versions_are_bounded_and_still_counted() -> None:
    view = LoopView(now=_now)
    view.add(make_manifest(policy_version=1, parent=None), START)
    for version in range(2, 502):
        view.add(make_manifest(policy_version=version, parent=version - 1), START)
    view.add(make_trace(served_at=START), START)
    snapshot = view.snapshot()
    assert len(snapshot.versions) == 200
    assert (snapshot.base_version, snapshot.counts.published) == (1, 500)


def test_dead_letters_are_counted() -> None:
    view = LoopView(now=_now)
    view.add(DeadLetter(topic="traces", reason="torn", value=b"x", at=START), START)
    assert view.snapshot().num_dead_letters == 1
