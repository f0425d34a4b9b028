"""Replicas that fail, clients that leave, stops: who is harmed, and who is not."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from serving.gateway.process import run
from tendril.settings import AccessSettings
from tests.serving.gateway.conftest import Pair
from tests.serving.gateway.live_gateway import CHAT, KEY, gateway, make_settings, until
from tests.serving.gateway.stub_replica import EVENT, StubReplica, running
from tests.serving.live_server import assert_refused, free_port

HEADERS = {"authorization": f"Bearer {KEY}"}


def num_seen(pair: Pair) -> list[int]:
    return sorted(len(stub.seen) for stub in pair.stubs)


@pytest.mark.parametrize("behaviour", ["reset", "refuse", "full"])
def test_a_replica_that_fails_before_its_reply_harms_nobody(pair: Pair, behaviour: str) -> None:
    pair.stubs[0].behaviour = behaviour
    replies = [pair.live.chat({"x-tendril-session-id": str(i)}) for i in range(20)]
    assert [reply.json() for reply in replies] == [{"replica": "b"}] * 20
    assert len(pair.stubs[0].seen) > 0


def test_when_all_refuse_the_client_gets_their_reply(pair: Pair) -> None:
    pair.all("refuse")
    reply = pair.live.chat()
    assert reply.status_code == 503
    assert set(reply.json()) == {"replica"}
    assert num_seen(pair) == [1, 1]


def test_a_lone_replica_is_not_asked_again_for_what_it_refused(tmp_path: Path) -> None:
    stub = StubReplica(behaviour="full")
    with running(stub), gateway(make_settings(tmp_path, stub)) as live:
        assert live.chat().status_code == 429
        assert len(stub.seen) == 1


def test_when_all_hang_up_the_client_is_told_so(pair: Pair) -> None:
    pair.all("reset")
    assert_refused(pair.live.chat(), 502, "hung up")


def test_nothing_is_retried_after_the_first_byte(pair: Pair) -> None:
    pair.all("cut")
    reply = pair.live.chat(stream=True)
    assert reply.status_code == 200
    assert reply.content.startswith(EVENT)
    assert '"code": "replica_gone"' in reply.text
    assert num_seen(pair) == [0, 1]


def test_a_silent_replica_is_not_asked_twice(pair: Pair) -> None:
    pair.all("silent")
    assert_refused(pair.live.chat(), 504, "silent")
    assert num_seen(pair) == [0, 1]
    until(pair.seen_last().hung_up.is_set)


def test_tokens_arrive_while_the_reply_goes_on(pair: Pair) -> None:
    pair.all("held")
    with pair.live.http.stream("POST", CHAT, json={"stream": True}) as reply:
        received = reply.iter_raw()
        assert next(received) == EVENT  # the rest is not written yet
        assert reply.headers["content-type"] == "text/event-stream"
        pair.seen_last().release.set()
        assert b"".join(received) == b"data: [DONE]\n\n"


@pytest.mark.parametrize("behaviour", ["endless", "silent"])
def test_a_client_that_leaves_ends_the_work_of_the_replica(pair: Pair, behaviour: str) -> None:
    pair.all(behaviour)
    with httpx.Client(headers=HEADERS, timeout=0.3) as client:
        if behaviour == "silent":
            with pytest.raises(httpx.ReadTimeout):
                client.post(pair.live.url + CHAT, json={})
        else:
            with client.stream("POST", pair.live.url + CHAT, json={}) as reply:
                next(reply.iter_raw())
    until(pair.seen_last().hung_up.is_set)
    until(lambda: pair.live.http.get("/health").json()["num_running"] == 0)


def test_a_session_stays_with_its_replica_and_sessions_are_spread(pair: Pair) -> None:
    where = {
        session: {
            pair.live.chat(metadata={"session_id": session}).json()["replica"] for _ in range(3)
        }
        for session in map(str, range(24))
    }
    assert all(len(replicas) == 1 for replicas in where.values())
    assert set().union(*where.values()) == {"a", "b"}


def test_beyond_the_bound_requests_are_told_to_come_back(tmp_path: Path) -> None:
    stub = StubReplica(behaviour="held")
    with running(stub), gateway(make_settings(tmp_path, stub, max_running=2)) as live:
        with ThreadPoolExecutor(2) as threads:
            held = [threads.submit(live.chat) for _ in range(2)]
            until(lambda: len(stub.seen) == 2)
            reply = live.chat()
            assert_refused(reply, 429, "2 requests at once")
            assert reply.headers["retry-after"] == "1"
            stub.release.set()
            assert [future.result().status_code for future in held] == [200, 200]
        assert live.chat().status_code == 200


def test_arms_reach_the_replica_and_follow_the_health_of_the_canary(tmp_path: Path) -> None:
    live_stub, canary = StubReplica("live"), StubReplica("canary")
    stubs = {"live": live_stub, "canary": canary}
    with (
        running(live_stub, canary),
        gateway(make_settings(tmp_path, live_stub, canary, canary_share=0.25)) as live,
    ):
        until(lambda: live.http.get("/health").json()["ready_replicas"]["canary"] == 1)
        users = [str(user) for user in range(60)]
        arms = {user: live.chat(user=user).json()["replica"] for user in users}
        assert {
            user: live.chat({"x-tendril-user": user}).json()["replica"] for user in users
        } == arms
        assert Counter(arms.values())["canary"] > 0
        for arm, propensity in (("live", "0.75"), ("canary", "0.25")):
            told = {
                (*seen.header("x-tendril-arm"), *seen.header("x-tendril-propensity"))
                for seen in stubs[arm].seen
            }
            assert told == {(arm, propensity)}
        canary.draining = True
        until(lambda: live.http.get("/health").json()["ready_replicas"]["canary"] == 0)
        live_stub.seen.clear()
        assert all(live.chat(user=user).json() == {"replica": "live"} for user in users)
        assert {seen.header("x-tendril-propensity")[0] for seen in live_stub.seen} == {"1.0"}


def test_with_no_replica_the_gateway_says_so_and_is_not_ready(tmp_path: Path) -> None:
    stub = StubReplica(ready=False)
    with running(stub), gateway(make_settings(tmp_path, stub), wait_ready=False) as live:
        reply = live.chat()
        assert_refused(reply, 503, "no replica")
        assert reply.headers["retry-after"] == "1"
        assert live.http.get("/ready").status_code == 503
        assert live.http.get("/health").status_code == 200
        stub.ready = True
        until(lambda: live.http.get("/ready").status_code == 200, timeout_s=2)
        assert live.chat().status_code == 200


def test_a_stop_is_announced_and_lets_running_replies_finish(tmp_path: Path) -> None:
    stub = StubReplica(behaviour="held")
    with (
        running(stub),
        gateway(make_settings(tmp_path, stub, drain_notice_s=0.5)) as live,
        live.http.stream("POST", CHAT, json={}) as reply,
    ):
        received = reply.iter_raw()
        assert next(received) == EVENT
        live.stop.set()
        until(lambda: httpx.get(f"{live.url}/ready").status_code == 503, timeout_s=0.5)
        stub.behaviour = "echo"
        late = httpx.post(live.url + CHAT, json={}, headers=HEADERS)
        assert (late.status_code, late.headers["connection"]) == (200, "close")
        time.sleep(0.6)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{live.url}/ready")
        stub.release.set()
        assert b"".join(received) == b"data: [DONE]\n\n"


def test_a_stop_takes_bounded_time_whatever_still_runs(tmp_path: Path) -> None:
    stub = StubReplica(behaviour="endless")
    with (
        running(stub),
        gateway(make_settings(tmp_path, stub, drain_s=1)) as live,
        live.http.stream("POST", CHAT, json={}) as reply,
    ):
        received = reply.iter_raw()  # kept: without it the client would hang up
        next(received)
        live.stop.set()
        assert not stub.hung_up.wait(0.8)
        assert stub.hung_up.wait(5)
        with pytest.raises(httpx.RemoteProtocolError):
            list(received)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
@pytest.mark.slow
def test_with_a_certificate_the_port_speaks_https_only(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    stub = StubReplica()
    access = AccessSettings(tls_certificate=certificate, tls_key=key)
    with running(stub), gateway(make_settings(tmp_path, stub, access=access)) as live:
        context = ssl.create_default_context(cafile=certificate)
        url = f"https://127.0.0.1:{live.port}{CHAT}"
        assert httpx.post(url, json={}, headers=HEADERS, verify=context).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http"))


def test_a_taken_port_ends_the_process_in_words(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    port = settings.gateway.port
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port}.*gateway\.port"),
    ):
        run(settings, threading.Event())


@pytest.mark.slow
def test_a_killed_replica_harms_nobody(tmp_path: Path) -> None:
    """kill -9 under load, again and again: every request is answered, with 200."""
    stubs = [StubReplica(name, port=free_port()) for name in ("a", "b")]
    statuses: Counter[int] = Counter()
    stop = threading.Event()

    def load(live_url: str, number: int) -> None:
        with httpx.Client(headers=HEADERS, timeout=20) as client:
            while not stop.is_set():
                session = {"x-tendril-session-id": f"{number}-{sum(statuses.values())}"}
                statuses[client.post(live_url + CHAT, json={}, headers=session).status_code] += 1

    processes = [_start(stub) for stub in stubs]
    try:
        with gateway(make_settings(tmp_path, *stubs)) as live, ThreadPoolExecutor(8) as threads:
            loads = [threads.submit(load, live.url, number) for number in range(8)]
            for victim in (0, 1, 0):
                until(lambda: live.http.get("/health").json()["ready_replicas"]["live"] == 2, 20)
                time.sleep(0.3)
                os.kill(processes[victim].pid, signal.SIGKILL)
                processes[victim].wait()
                time.sleep(0.3)
                processes[victim] = _start(stubs[victim])
            stop.set()
            for done in loads:
                done.result()
    finally:
        stop.set()
        for process in processes:
            process.kill()
            process.wait()
    assert set(statuses) == {200}
    assert statuses[200] > 200


def _start(stub: StubReplica) -> subprocess.Popen[bytes]:
    module = "tests.serving.gateway.stub_replica"
    return subprocess.Popen(
        [sys.executable, "-m", module, stub.name, str(stub.port)], cwd=Path(__file__).parents[3]
    )
