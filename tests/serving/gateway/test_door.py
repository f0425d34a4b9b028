"""Who and what the gateway lets through, and what it takes off on the way."""

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.key_file import revoke_key
from serving.keys import internal_token, node_secret
from tests.serving.gateway.conftest import Pair
from tests.serving.gateway.live_gateway import CHAT, KEY, gateway, make_settings, until
from tests.serving.gateway.stub_replica import StubReplica, running
from tests.serving.live_server import assert_refused

PAGE = "https://app.example"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("authorization", ["", "Bearer tk-unknown", "Basic Zm9vOmJhcg=="])
def test_nobody_passes_without_a_key(pair: Pair, authorization: str) -> None:
    reply = pair.live.chat({"authorization": authorization})
    assert_refused(reply, 401, "Authorization")
    assert "tk-unknown" not in reply.text
    assert reply.headers["www-authenticate"] == "Bearer"
    assert not any(stub.seen for stub in pair.stubs)


def test_an_operator_key_is_for_operators_only(pair: Pair) -> None:
    assert_refused(pair.live.chat(bearer(pair.keys["operator"])), 401)


def test_a_key_may_come_as_anthropic_clients_send_it(pair: Pair) -> None:
    reply = httpx.post(f"{pair.live.url}/v1/messages", json={}, headers={"x-api-key": KEY})
    assert reply.status_code == 200


def test_a_revoked_key_ends_within_a_second(pair: Pair) -> None:
    headers = bearer(pair.keys["leaver"])
    assert pair.live.chat(headers).status_code == 200
    settings = pair.live.settings
    revoke_key(settings.path(settings.access.key_file), "leaver")
    until(lambda: pair.live.chat(headers).status_code == 401, timeout_s=2)


def test_a_quota_ends_in_429_that_says_when_to_come_back(pair: Pair) -> None:
    headers = bearer(pair.keys["slow"])
    assert [pair.live.chat(headers).status_code for _ in range(3)] == [200] * 3
    reply = pair.live.chat(headers)
    assert_refused(reply, 429, "slow", "3 requests a minute")
    assert 1 <= int(reply.headers["retry-after"]) <= 60
    assert pair.live.chat().status_code == 200  # other keys go on


def test_a_quota_of_tokens_counts_prompt_and_replies(pair: Pair) -> None:
    headers = bearer(pair.keys["short"])
    assert pair.live.chat(headers, max_tokens=700).status_code == 200
    assert_refused(pair.live.chat(headers, max_tokens=400), 429, "tokens a minute")
    assert pair.live.chat(headers, max_tokens=100).status_code == 200


def test_the_offline_lane_is_for_keys_that_allow_it(pair: Pair) -> None:
    lane = {"x-tendril-lane": "offline"}
    assert_refused(pair.live.chat(lane), 403, "x-tendril-lane")
    assert pair.live.chat(lane | bearer(pair.keys["nightly"])).status_code == 200
    assert_refused(pair.live.chat({"x-tendril-lane": "fast"}), 403, "fast")


def test_claims_of_trust_and_of_one_connection_are_taken_off(pair: Pair) -> None:
    reply = pair.live.chat(
        {
            "x-tendril-gateway": "forged",
            "X-Tendril-Arm": "canary",
            "x_tendril_propensity": "0.001",
            "x-forwarded-for": "10.0.0.1",
            "connection": "keep-alive, x-secret-hop, x-tendril-train-consent",
            "x-secret-hop": "1",
            "te": "trailers",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "x-tendril-train-consent": "false",
        }
    )
    assert reply.status_code == 200
    [seen] = pair.seen_last().seen
    token = internal_token(node_secret(pair.live.settings.workspace))
    assert seen.header("x-tendril-gateway") == [token]
    assert seen.header("x-tendril-arm") == ["live"]
    assert seen.header("x-tendril-propensity") == ["1.0"]
    for name in ("x_tendril_propensity", "x-forwarded-for", "x-secret-hop", "te", "connection"):
        assert seen.header(name) == []
    assert seen.header("traceparent")[0].endswith("b7ad6b7169203331-01")
    assert seen.header("x-tendril-train-consent") == ["false"]
    assert seen.header("host") == [pair.seen_last().url.removeprefix("http://")]


def test_the_body_and_the_query_arrive_as_they_were_sent(pair: Pair) -> None:
    body = b'{"prompt": "\\ud83c\\udf31 \xf0\x9f\x8c\xb1",  "n":1}'
    pair.live.http.post("/v1/completions?a=%2F&b=%20c", content=body)
    [seen] = pair.seen_last().seen
    assert (seen.body, seen.target) == (body, "/v1/completions?a=%2F&b=%20c")


def test_a_large_body_arrives_whole(pair: Pair) -> None:
    body = json.dumps({"prompt": "x" * 99_000}).encode()
    assert pair.live.http.post("/v1/completions", content=body).status_code == 200
    assert pair.seen_last().seen[0].body == body


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused(pair: Pair, chunked: bool) -> None:
    body = b"x" * 100_001
    content: Any = iter([body[:60_000], body[60_000:]]) if chunked else body
    assert_refused(pair.live.http.post(CHAT, content=content), 413, "100000")
    assert not any(stub.seen for stub in pair.stubs)


@pytest.mark.parametrize(
    "target",
    [
        "/", "/admin/status", "/metrics", "/docs", "/openapi.json", "/v1", "/v1x/models",
        "/v1/../admin/status", "/v1/%2e%2e/admin/status", "/v1/..%2fadmin/status",
        "/v1//models", "//v1/models", "/%76%31/models", "/v1/a\\..\\admin", "/v1/%00",
        "/health/", "/v1/x/./y", "http://other/admin/status",
    ],
)  # fmt: skip
def test_only_public_paths_exist(pair: Pair, target: str) -> None:
    assert raw(pair, f"GET {target} HTTP/1.1\r\n{AUTHORIZED}\r\n").startswith(b"HTTP/1.1 404")
    assert not any(stub.seen for stub in pair.stubs)


AUTHORIZED = f"Host: x\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"


def raw(pair: Pair, request: str | bytes) -> bytes:
    """All that comes back on a connection of its own."""
    with socket.create_connection(("127.0.0.1", pair.live.port), timeout=5) as connection:
        connection.sendall(request.encode("latin-1") if isinstance(request, str) else request)
        received = b""
        while part := connection.recv(65_536):
            received += part
        return received


def test_other_methods_are_refused(pair: Pair) -> None:
    assert_refused(pair.live.http.put("/v1/models"), 405)


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5,5\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "X: a\r\n folded\r\nContent Length: 5\r\n",
        "X: " + "a" * 400_000 + "\r\n",
        "".join(f"X-{i}: {'a' * 100}\r\n" for i in range(4_000)),
        "X: \xff\xfe\r\nContent-Length: 0\r\n",
    ],
)
def test_a_head_with_two_readings_or_without_end_is_refused(pair: Pair, head: str) -> None:
    smuggled = "0\r\n\r\nGET /admin/status HTTP/1.1\r\nHost: x\r\n\r\n"
    try:
        answer = raw(pair, f"POST {CHAT} HTTP/1.1\r\n{AUTHORIZED}{head}\r\n{smuggled}")
    except ConnectionResetError:  # it closes while we still write
        answer = b"HTTP/1.1 400"
    assert answer.startswith(b"HTTP/1.1 400")
    assert not any(stub.seen for stub in pair.stubs)


def test_two_requests_on_one_connection_get_two_replies_in_order(pair: Pair) -> None:
    head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 2\r\n"
    both = f"POST /v1/a {head}\r\n{{}}POST /v1/b {head}Connection: close\r\n\r\n{{}}"
    assert raw(pair, both).count(b"HTTP/1.1 200") == 2
    assert sorted(s.target for stub in pair.stubs for s in stub.seen) == ["/v1/a", "/v1/b"]


def test_feedback_and_preflights_need_no_key(pair: Pair) -> None:
    event = {"trace_id": "0197", "event_id": "e", "type": "suggestion.accepted"}
    for _ in range(3):
        reply = httpx.post(f"{pair.live.url}/v1/feedback?token=t", json=event)
        assert reply.status_code == 200
    assert len(pair.seen_last().seen) == 3  # one replica, which knows the repeats
    origin = {"origin": "https://app.example", "access-control-request-method": "POST"}
    assert httpx.options(pair.live.url + CHAT, headers=origin).status_code == 200
    assert httpx.options(f"{pair.live.url}/admin/status", headers=origin).status_code == 404


def test_a_web_page_can_read_replies_and_why_it_was_refused(tmp_path: Path) -> None:
    stub = StubReplica()
    with running(stub), gateway(make_settings(tmp_path, stub, cors_origins=(PAGE,))) as live:
        for headers, status in (({}, 200), (bearer("unknown"), 401)):
            reply = live.chat(headers | {"origin": PAGE})
            assert reply.status_code == status
            assert reply.headers.get_list("access-control-allow-origin") == [PAGE]
            assert "retry-after" in reply.headers["access-control-expose-headers"]
        assert "access-control-allow-origin" not in live.chat({"origin": "https://evil"}).headers


@pytest.mark.parametrize("line", [b"a: b\r\n", b"x"])
def test_trailers_without_end_are_hung_up_on(pair: Pair, line: bytes) -> None:
    """They are neither head nor body, and need no key."""
    head = b"POST /v1/feedback HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    num_sent, flood = 0, line * (65_536 // len(line))
    with socket.create_connection(("127.0.0.1", pair.live.port), timeout=5) as connection:
        connection.sendall(head + b"2\r\n{}\r\n0\r\n")
        with contextlib.suppress(OSError):  # reset, or a broken pipe
            while num_sent < 200:
                connection.sendall(flood)
                num_sent += 1
                time.sleep(0.01)
    assert num_sent < 100


def test_a_trailer_is_no_header(pair: Pair) -> None:
    key = next(iter(bearer(pair.keys["nightly"]).items()))
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{key[0]}: {key[1]}\r\n"
        "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    body = '{"model": "tendril", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}'
    chunk = f"{len(body):x}\r\n{body}\r\n0\r\nx-tendril-user: somebody-else\r\n\r\n"
    with socket.create_connection(("127.0.0.1", pair.live.port), timeout=5) as connection:
        connection.sendall(f"{head}{chunk}".encode())
        assert b" 200 " in connection.recv(4_096)
    [seen] = pair.seen_last().seen
    assert seen.header("x-tendril-user") == []
