"""A stand-in for Tendril over real HTTP: completions with trace headers, and a feedback API."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

TEXT = " return value"


class Answer(NamedTuple):
    """What the feedback API is to say to one request."""

    status: int
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()


def refuse(code: str, error_type: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A verdict on one event."""
    error = {"message": code, "type": error_type, "param": None, "code": code}
    return lambda event: {"event_id": event["event_id"], "status": "refused", "error": error}


class FakeTendril:
    """Remembers what it took; `script` answers the first requests, one each."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.text = TEXT
        self.events: list[dict[str, Any]] = []
        """Each once, in the order of their arrival."""
        self.batch_sizes: list[int] = []
        """Of every request, the failed ones too."""
        self.request_headers: list[dict[str, str]] = []
        """Of completions."""
        self.script: list[Answer] = []
        self.verdict_on: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
        """By event type, for the events that are to be refused."""
        self.is_down = False
        self.lock = threading.Lock()
        self.num_replies = 0

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def take(self, body: bytes) -> Answer:
        batch = json.loads(body)["events"]
        with self.lock:
            self.batch_sizes.append(len(batch))
            if self.is_down:
                return Answer(503)
            if self.script:
                return self.script.pop(0)
            results = [self._verdict(event) for event in batch]
        return Answer(200, json.dumps({"results": results}).encode())

    def _verdict(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["type"] in self.verdict_on:
            return self.verdict_on[event["type"]](event)
        is_known = event["event_id"] in {known["event_id"] for known in self.events}
        if not is_known:
            self.events.append(event)
        status = "duplicate" if is_known else "accepted"
        return {"event_id": event["event_id"], "status": status}

    def complete(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[str, Answer]:
        """The trace's id, and the reply."""
        with self.lock:
            self.request_headers.append(headers)
            self.num_replies += 1
            trace_id = f"trace-{self.num_replies}"
        choice = {"index": 0, "text": self.text, "finish_reason": "stop", "logprobs": None}
        reply = {
            "id": f"cmpl-{trace_id}", "object": "text_completion", "created": 0,
            "model": body["model"], "choices": [choice],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }  # fmt: skip
        return trace_id, Answer(200, json.dumps(reply).encode())


@contextlib.contextmanager
def fake_tendril() -> Iterator[FakeTendril]:
    """Serves until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path.startswith("/v1/feedback"):
                self.answer(fake.take(body))
            else:
                trace_id, reply = fake.complete(json.loads(body), dict(self.headers))
                trace = (
                    ("x-tendril-trace-id", trace_id),
                    ("x-tendril-policy-version", "7"),
                    ("x-tendril-feedback-url", f"/v1/feedback?token=t-{trace_id}"),
                )
                self.answer(reply._replace(headers=trace))

        def answer(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for name, value in (*answer.headers, ("content-type", "application/json")):
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = FakeTendril(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Poll until it holds."""
    ticks = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        ticks.wait(0.01)
    raise TimeoutError
