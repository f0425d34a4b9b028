"""The simulated company at work: people type real code and react to what the model suggests.

They are ordinary clients: completions and feedback over HTTP, with an application key. Like real
clients they retry, and their events arrive late, now and then twice, and a few out of order.
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from offline_rl.autocomplete.corpus import house_files
from offline_rl.autocomplete.personas import PERSONAS, Persona, Reaction, react
from offline_rl.autocomplete.typing_positions import Pause, pauses
from tendril.files import write_whole
from tendril.ids import new_id

DECISIONS_PER_SESSION = 15
DUPLICATE_SHARE = 0.03
DISORDER_SHARE = 0.03
FLUSH_S = 0.5
RETRY_S = 0.5
TEMPERATURE = 0.7


@dataclass(slots=True)
class Tally:
    """What the users saw, for the report: clients know best which requests failed."""

    requests: int = 0
    failed: int = 0
    shown: int = 0
    suppressed: int = 0
    events: int = 0
    """Distinct events that the service acknowledged."""
    refused_events: int = 0
    first_suggestion_at: float | None = None
    last_error: str = ""


@dataclass(slots=True, kw_only=True)
class Company:
    """All users and what they share."""

    http: httpx.AsyncClient
    model: str
    retention_s: float
    tally: Tally = field(default_factory=Tally)


@dataclass(slots=True)
class Session:
    """One person with one file open, and the editor's queue of events."""

    company: Company
    persona: Persona
    user: str
    rng: random.Random
    session_id: str = field(default_factory=new_id)
    next_seq: int = 0
    queue: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    async def type_through(self, text: str) -> None:
        """Ask at each pause, react, think."""
        places = pauses(text, self.rng, mean_words_between=self.persona.words_between)
        for _, pause in zip(range(DECISIONS_PER_SESSION), places, strict=False):
            await self._decide(pause)
            await self._deliver(before=time.time())
            await asyncio.sleep(self.rng.expovariate(1 / self.persona.think_s))

    async def finish_reporting(self) -> None:
        """Deliver what is still to happen to the last suggestions."""
        while self.queue:
            await asyncio.sleep(FLUSH_S)
            await self._deliver(before=time.time())

    async def _decide(self, pause: Pause) -> None:
        tally = self.company.tally
        body = {
            "model": self.company.model,
            "prompt": pause.prompt,
            "max_tokens": self.persona.max_tokens,
            "temperature": TEMPERATURE,
            "user": self.user,
        }
        tally.requests += 1
        try:
            reply = await self.company.http.post(
                "/v1/completions", json=body, headers={"x-tendril-session-id": self.session_id}
            )
            reply.raise_for_status()
            suggestion: str = reply.json()["choices"][0]["text"]
        except (httpx.HTTPError, ValueError) as error:
            tally.failed += 1
            tally.last_error = repr(error)
            await asyncio.sleep(RETRY_S)
            return
        if not suggestion:
            tally.suppressed += 1
            return
        tally.shown += 1
        tally.first_suggestion_at = tally.first_suggestion_at or time.time()
        trace_id = reply.headers["x-tendril-trace-id"]
        token = reply.headers["x-tendril-feedback-url"].partition("token=")[2]
        reactions = react(
            self.persona, suggestion, pause.following, self.rng, self.company.retention_s
        )
        self._enqueue(reactions, trace_id, token)

    def _enqueue(self, reactions: list[Reaction], trace_id: str, token: str) -> None:
        shown_at = time.time()
        for reaction in reactions:
            at = shown_at + reaction.delay_s
            self.next_seq += 1
            self.queue.append((at, event_of(reaction, trace_id, token, self.next_seq, at)))

    async def _deliver(self, before: float) -> None:
        """Send what has happened by now; keep it until the service acknowledges it."""
        due = [event for at, event in self.queue if at <= before]
        if not due:
            return
        if self.rng.random() < DISORDER_SHARE:
            self.rng.shuffle(due)
        copies = 2 if self.rng.random() < DUPLICATE_SHARE else 1
        for copy in range(copies):
            try:
                reply = await self.company.http.post("/v1/feedback", json={"events": due})
                reply.raise_for_status()
                results = reply.json()["results"]
            except (httpx.HTTPError, ValueError) as error:
                self.company.tally.last_error = repr(error)
                return  # the events stay queued: same ids, next time
            if copy == 0:
                refused = sum(result["status"] == "refused" for result in results)
                self.company.tally.refused_events += refused
                self.company.tally.events += len(due) - refused
        self.queue = [(at, event) for at, event in self.queue if at > before]


def event_of(
    reaction: Reaction, trace_id: str, token: str, client_seq: int, at: float
) -> dict[str, Any]:
    """A reaction as `/v1/feedback` takes it."""
    fields = {k: v for k, v in asdict(reaction).items() if v is not None and k != "delay_s"}
    return {
        "event_id": new_id(),
        "trace_id": trace_id,
        "feedback_token": token,
        "client_seq": client_seq,
        "client_time": at,
        **fields,
    }


async def work(
    company: Company, num_users: int, seed: int, stats: Path, stop: asyncio.Event
) -> None:
    """Keep `num_users` people typing until `stop`."""
    texts = [file.text for file in house_files() if file.split == "train"]
    rng = random.Random(seed)
    async with asyncio.TaskGroup() as tasks:
        people = [
            tasks.create_task(person(company, number, texts, random.Random(rng.random()), tasks))
            for number in range(num_users)
        ]
        while not stop.is_set():
            write_stats(stats, company.tally)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), timeout=0.5)
        for task in people:
            task.cancel()
    write_stats(stats, company.tally)


async def person(
    company: Company,
    number: int,
    texts: Sequence[str],
    rng: random.Random,
    tasks: asyncio.TaskGroup,
) -> None:
    """One file after the other; the editor goes on reporting about the last one meanwhile."""
    await asyncio.sleep(rng.random())
    while True:
        session = Session(company, PERSONAS[number % len(PERSONAS)], f"user-{number}", rng)
        try:
            await session.type_through(rng.choice(texts))
        finally:
            tasks.create_task(session.finish_reporting())


def write_stats(path: Path, tally: Tally) -> None:
    write_whole(path, json.dumps(asdict(tally)).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument("--model", default="tendril")
    parser.add_argument("--users", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--retention-s", type=float, default=5.0)
    parser.add_argument("--stats", type=Path, required=True)
    asyncio.run(_main(parser.parse_args()))


async def _main(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    key = await _wait_for_service(arguments.url, arguments.key_file, stop)
    limits = httpx.Limits(max_connections=arguments.users * 2)
    async with httpx.AsyncClient(
        base_url=arguments.url,
        headers={"authorization": f"Bearer {key}"},
        timeout=30,
        limits=limits,
    ) as http:
        company = Company(http=http, model=arguments.model, retention_s=arguments.retention_s)
        await work(company, arguments.users, arguments.seed, arguments.stats, stop)


async def _wait_for_service(url: str, key_file: Path, stop: asyncio.Event) -> str:
    """The application key, once the service answers."""
    async with httpx.AsyncClient(base_url=url, timeout=2) as http:
        while not stop.is_set():
            with contextlib.suppress(httpx.HTTPError):
                if (await http.get("/ready")).is_success and key_file.exists():
                    return key_file.read_text().strip()
            await asyncio.sleep(0.1)
    return ""


if __name__ == "__main__":
    main()
