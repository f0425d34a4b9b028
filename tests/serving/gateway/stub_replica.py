"""A replica that does as it is told, over plain sockets: answers, streams, hangs up, keeps silent.

`python -m tests.serving.gateway.stub_replica NAME PORT` runs one that can be killed.
"""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

EVENT = b'data: {"choices": [{"text": "token"}]}\n\n'


@dataclass
class Seen:
    """One request, as it came."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value for found, value in self.headers if found == name]


@dataclass
class StubReplica:
    """What it does next, and what it has seen. `behaviour` is one of the methods below."""

    name: str = "stub"
    behaviour: str = "echo"
    ready: bool = True
    draining: bool = False
    num_running: int = 0
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)
    """A client went away in the middle of a stream or a silence."""
    release: threading.Event = field(default_factory=threading.Event)
    """Lets a `held` reply go on."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    seen = await _read(reader)
                    await self._answer(seen, reader, writer)
        finally:
            writer.close()  # cancelled, too: a socket left open would fail some later test

    async def _answer(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if seen.target == "/ready":
            writer.write(_whole(200 if self.ready else 503, {}))
        elif seen.target == "/health":
            load = {"num_running": self.num_running, "num_waiting": 0, "draining": self.draining}
            writer.write(_whole(200, {"status": "ok", "policy_version": 3, **load}))
        else:
            self.seen.append(seen)
            await getattr(self, self.behaviour)(seen, reader, writer)
        await writer.drain()

    async def echo(self, seen: Seen, reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(_whole(200, {"replica": self.name}))

    async def refuse(self, seen: Seen, reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(_whole(503, {"replica": self.name}))

    async def full(self, seen: Seen, reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(_whole(429, {"replica": self.name}))

    async def slow(self, seen: Seen, reader: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(_whole(200, {"replica": self.name}))

    async def reset(self, seen: Seen, reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def silent(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        self.hung_up.set()

    async def cut(self, seen: Seen, reader: Any, writer: asyncio.StreamWriter) -> None:
        """Begins to answer, and goes."""
        _start_stream(writer)
        _chunk(writer, EVENT)
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()

    async def held(self, seen: Seen, reader: Any, writer: asyncio.StreamWriter) -> None:
        """One event at once, the rest when `release` is set."""
        _start_stream(writer)
        _chunk(writer, EVENT)
        await writer.drain()
        while not self.release.is_set():
            await asyncio.sleep(0.005)
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    async def endless(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Streams until the other side hangs up."""
        _start_stream(writer)
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                _chunk(writer, EVENT)
                await writer.drain()
                await asyncio.sleep(0.005)
        self.hung_up.set()
        raise ConnectionResetError


async def _read(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = [(k.lower(), v.strip()) for k, _, v in (line.partition(":") for line in lines)]
    lengths = [int(value) for name, value in headers if name == "content-length"]
    body = await reader.readexactly(lengths[0]) if lengths else b""
    return Seen(method, target, headers, body)


def _whole(status: int, content: object) -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nx-from-replica: yes\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def _start_stream(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


@contextlib.contextmanager
def running(*stubs: StubReplica) -> Iterator[None]:
    """All of them on ports of their own, in one thread, until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers: list[asyncio.Server] = []

    async def start() -> None:
        for stub in stubs:
            server = await asyncio.start_server(stub.connected, "127.0.0.1", stub.port)
            servers.append(server)
            stub.port = server.sockets[0].getsockname()[1]

    async def end() -> None:
        for server in servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.01)  # the loop closes their connections

    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        yield
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def main(name: str, port: int) -> None:
    stub = StubReplica(name=name, behaviour="slow", port=port)
    server = await asyncio.start_server(stub.connected, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
